/*
 * Shared hash keys (perl: PL_strtab, share_hek): one copy of each text in a table, with the number of those that use
 * it. In cow3 a key is a body as well, with its text where a short text is, so that a scalar made of it needs only a
 * head.
 */
#include "key.h"

#include "checked.h"

#include <stdlib.h>
#include <string.h>

static struct key **table;
static size_t buckets, keys;

/* Bob Jenkins' one-at-a-time without a seed: figures have to be the same in each run. */
static uint32_t hash_of(const char *bytes, size_t length)
{
    uint32_t hash = 0;
    for (size_t i = 0; i < length; i++) {
        hash += (unsigned char)bytes[i];
        hash += hash << 10;
        hash ^= hash >> 6;
    }
    hash += hash << 3;
    hash ^= hash >> 11;
    return hash + (hash << 15);
}

/* Twice the buckets, as soon as there is a key for each. */
static void split(void)
{
    size_t more = buckets ? buckets * 2 : 512;
    struct key **larger = checked(calloc(more, sizeof *larger), "a key");
    for (size_t i = 0; i < buckets; i++)
        for (struct key *key = table[i], *next; key; key = next) {
            next = key->next;
            key->next = larger[key->hash & (more - 1)];
            larger[key->hash & (more - 1)] = key;
        }
    free(table);
    table = larger;
    buckets = more;
}

struct key *key_share(const char *bytes, size_t length)
{
    if (keys >= buckets)
        split();
    uint32_t hash = hash_of(bytes, length);
    struct key **bucket = &table[hash & (buckets - 1)];
    for (struct key *key = *bucket; key; key = key->next)
        if (key->hash == hash && key->cur == length && !memcmp(key->text, bytes, length)) {
            key->references++;
            return key;
        }
    struct key *key = checked(malloc(offsetof(struct key, text) + length + 1), "a key");
    key->next = *bucket;
    key->references = 1;
    key->hash = hash;
    key->cur = length;
    memcpy(key->text, bytes, length);
    key->text[length] = 0;
    *bucket = key;
    keys++;
    return key;
}

void key_release(struct key *key)
{
    if (--key->references)
        return;
    struct key **way = &table[key->hash & (buckets - 1)];
    while (*way != key)
        way = &(*way)->next;
    *way = key->next;
    keys--;
    free(key);
}

size_t keys_live(void)
{
    return keys;
}

void keys_end(void)
{
    free(table);
    table = NULL;
    buckets = 0;
}
