/* A number that depends on all texts it was given: the same in every layout, or a layout is wrong. */
#ifndef DIGEST_H
#define DIGEST_H

#include "scalar.h"

/* Takes a text into the digest. */
void digest_text(const struct scalar *s);

/* What it has come to. */
uint32_t digest_value(void);

#endif
