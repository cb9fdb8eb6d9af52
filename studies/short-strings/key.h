/* Shared hash keys: see key.c. */
#ifndef KEY_H
#define KEY_H

#include "layout.h"

struct key {
    struct key *next;
    size_t references;
    uint32_t hash;
#ifdef HAS_LINKS
    /*
     * From here on it is a body with its text where a short text is: scalars need none of their own. It is written as a
     * key and read as a body, which C's rules of aliasing do not allow: built with -fno-strict-aliasing, as perl is.
     */
    size_t cur;
#else
    uint32_t cur;
#endif
    char text[];
};

/* The one key of that text, with one reference more. */
struct key *key_share(const char *bytes, size_t length);
static inline struct key *key_of(const struct scalar *s)
{
    return (struct key *)(s->text - offsetof(struct key, text));
}
void key_release(struct key *key);
size_t keys_live(void);
void keys_end(void);

#endif
