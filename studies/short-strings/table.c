/* Arrays and hashes: see table.h. */
#include "table.h"

#include "checked.h"

#include <stdlib.h>
#include <string.h>

static struct arena entries = ARENA(sizeof(struct entry));

void array_push(struct array *array, struct scalar *item)
{
    if (array->count == array->room) {
        size_t room = array->room ? array->count + 1 + (array->room - 1) / 5 : 4;
        array->items = checked(realloc(array->items, room * sizeof *array->items), "a table");
        memset(array->items + array->room, 0, (room - array->room) * sizeof *array->items);
        array->room = room;
    }
    array->items[array->count++] = item;
}

void array_clear(struct array *array)
{
    while (array->count)
        scalar_free(array->items[--array->count]);
}

void array_end(struct array *array)
{
    array_clear(array);
    free(array->items);
    array->items = NULL;
    array->room = 0;
}

static void split(struct hash *hash)
{
    size_t more = hash->buckets ? hash->buckets * 2 : 8;
    struct entry **larger = checked(calloc(more, sizeof *larger), "a table");
    for (size_t i = 0; i < hash->buckets; i++)
        for (struct entry *entry = hash->table[i], *next; entry; entry = next) {
            next = entry->next;
            entry->next = larger[entry->key->hash & (more - 1)];
            larger[entry->key->hash & (more - 1)] = entry;
        }
    free(hash->table);
    hash->table = larger;
    hash->buckets = more;
}

void **hash_at(struct hash *hash, const char *bytes, size_t length)
{
    struct key *key = key_share(bytes, length);
    if (hash->count >= hash->buckets)
        split(hash);
    struct entry **bucket = &hash->table[key->hash & (hash->buckets - 1)];
    for (struct entry *entry = *bucket; entry; entry = entry->next)
        if (entry->key == key) {
            key_release(key);
            return &entry->value;
        }
    struct entry *entry = arena_take(&entries);
    entry->next = *bucket;
    entry->key = key;
    entry->value = NULL;
    *bucket = entry;
    hash->count++;
    return &entry->value;
}

static int by_bytes(const void *a, const void *b)
{
    const struct scalar *left = *(struct scalar *const *)a, *right = *(struct scalar *const *)b;
    size_t least = scalar_length(left) < scalar_length(right) ? scalar_length(left) : scalar_length(right);
    int order = memcmp(scalar_text(left), scalar_text(right), least);
    return order ? order : (scalar_length(left) > scalar_length(right)) - (scalar_length(left) < scalar_length(right));
}

void hash_keys(const struct hash *hash, struct array *keys)
{
    for (size_t i = 0; i < hash->buckets; i++)
        for (struct entry *entry = hash->table[i]; entry; entry = entry->next)
            array_push(keys, scalar_new_key(entry->key));
    if (keys->count)
        qsort(keys->items, keys->count, sizeof *keys->items, by_bytes);
}

void hash_end(struct hash *hash, void (*value_free)(void *))
{
    for (size_t i = 0; i < hash->buckets; i++)
        for (struct entry *entry = hash->table[i], *next; entry; entry = next) {
            next = entry->next;
            value_free(entry->value);
            key_release(entry->key);
            arena_give(&entries, entry);
        }
    free(hash->table);
    memset(hash, 0, sizeof *hash);
}

void tables_end(void)
{
    arena_end(&entries);
}
