/* FNV-1a over all texts: see digest.h. */
#include "digest.h"

static uint32_t digest = 2166136261u;

void digest_text(const struct scalar *s)
{
    const char *text = scalar_text(s);
    for (size_t i = 0, length = scalar_length(s); i < length; i++)
        digest = (digest ^ (unsigned char)text[i]) * 16777619u;
}

uint32_t digest_value(void)
{
    return digest;
}
