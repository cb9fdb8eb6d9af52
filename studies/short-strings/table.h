/* Arrays and hashes of scalars for the benchmarks, as plain as perl's: 24 bytes an entry, keys shared. */
#ifndef TABLE_H
#define TABLE_H

#include "scalar.h"

struct array {
    struct scalar **items;
    size_t count, room;
};

/* Adds it; the array grows by a fifth, as perl's do (av.c, av_extend_guts). */
void array_push(struct array *array, struct scalar *item);
/* Frees its scalars; what it has room for stays. */
void array_clear(struct array *array);
void array_end(struct array *array);

struct entry {
    struct entry *next;
    struct key *key;
    void *value;
};

struct hash {
    struct entry **table;
    size_t buckets, count;
};

/* Where the value of that key is; NULL at first. */
void **hash_at(struct hash *hash, const char *bytes, size_t length);
/* A scalar of each key, as `keys %hash` makes them, in the order of their bytes. */
void hash_keys(const struct hash *hash, struct array *keys);
/* Frees entries, and each value by this. */
void hash_end(struct hash *hash, void (*value_free)(void *));
/* Gives the arena of entries back. */
void tables_end(void);

#endif
