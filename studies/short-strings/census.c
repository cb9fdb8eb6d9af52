/*
 * What a layout costs and allows, counted:
 *
 *   bytes.N      of memory for one fresh scalar of N bytes of text (head, body, buffer, their share of arenas and of
 *                malloc's own words), from 10,000 of them, by malloc's count of what is in use
 *   buffers.N    buffers that malloc was asked for, for each of them
 *   pviv.N       bytes for one of them that was upgraded for a number as well
 *   written      bytes for an integer of 12 digits whose text was wanted then: it has both
 *   uncowable    lengths from 16 to 1,000 that one scalar, set to longer and longer texts, cannot share; and the first
 *   first.I      of them
 *   refused      of the same lengths, those not shared because much of the buffer is unused (a choice, not a limit)
 *   sharers      that one text has after it was copied to 1,000 scalars
 *   foreign      1 where the copy of a text that is not ours shares its bytes, on a page that cannot be written
 *   key_bytes    of memory for each further scalar made of one hash key
 *   counter_bytes, pair_bytes   that sharing needs for one buffer of three scalars, of two
 *
 * Prints them as one JSON line. To be built with -DCOUNT.
 */
#define _GNU_SOURCE
#include "scalar.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EACH 10000
#define LONGEST 48

static struct scalar *scalars[EACH];
static char text[2048];

static size_t in_use(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static double count_buffers; /* of the last fill, each */

/* Bytes of each of EACH scalars with a text of that length; of that type. */
static double fill(size_t length, enum type type)
{
    size_t before = in_use();
    unsigned long long buffers = counts.buffers;
    for (size_t i = 0; i < EACH; i++) {
        scalars[i] = scalar_new_text(text, length);
        scalar_upgrade(scalars[i], type);
    }
    double bytes = (double)(in_use() - before) / EACH;
    count_buffers = (double)(counts.buffers - buffers) / EACH;
    for (size_t i = 0; i < EACH; i++)
        scalar_free(scalars[i]);
    scalars_end();
    return bytes;
}

static void list(const char *name, const double *values, size_t count)
{
    printf("\"%s\": [", name);
    for (size_t i = 0; i < count; i++)
        printf("%s%.4g", i ? ", " : "", values[i]);
    printf("], ");
}

static void lengths(void)
{
    double bytes[LONGEST + 1], buffers[LONGEST + 1], upgraded[LONGEST + 1];
    for (size_t length = 0; length <= LONGEST; length++) {
        bytes[length] = fill(length, TYPE_PV);
        buffers[length] = count_buffers;
        upgraded[length] = fill(length, TYPE_PVIV);
    }
    list("bytes", bytes, LONGEST + 1);
    list("buffers", buffers, LONGEST + 1);
    list("pviv", upgraded, LONGEST + 1);
}

/* Bytes of each of EACH integers that got a text besides, in the body that they had already. */
static double written(void)
{
    size_t before = in_use();
    for (size_t i = 0; i < EACH; i++) {
        scalars[i] = scalar_new();
        scalar_set_integer(scalars[i], 123456789012);
        scalar_write_integer(scalars[i]);
    }
    double bytes = (double)(in_use() - before) / EACH;
    for (size_t i = 0; i < EACH; i++)
        scalar_free(scalars[i]);
    scalars_end();
    return bytes;
}

/* Which lengths cannot be shared by a scalar whose buffer is used again. */
static void uncowable(void)
{
    struct scalar *s = scalar_new();
    double first[8] = {0};
    unsigned count = 0, refused = 0;
    for (size_t length = 1; length <= 1000; length++) {
        struct scalar *other = scalar_new();
        unsigned long long shared = counts.shared, no_byte = counts.no_byte;
        scalar_set(s, text, length);
        scalar_copy(other, s);
        int is_shared = counts.shared > shared, is_counted = length >= 16;
        if (!is_shared && is_counted && counts.no_byte > no_byte) {
            if (count < 8)
                first[count] = (double)length;
            count++;
        } else if (!is_shared && is_counted) {
            refused++;
        }
        scalar_free(other);
    }
    scalar_free(s);
    printf("\"uncowable\": %u, \"refused\": %u, ", count, refused);
    list("first", first, 8);
}

static void sharing(void)
{
    struct scalar *s = scalar_new_text(text, 100);
    for (size_t i = 0; i < 1000; i++)
        scalar_copy(scalars[i] = scalar_new(), s);
    printf("\"sharers\": %zu, ", scalar_sharers(s));
    for (size_t i = 0; i < 1000; i++)
        scalar_free(scalars[i]);
    scalar_free(s);

    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(page, 'a', 100);
    mprotect(page, 4096, PROT_READ);
    struct scalar *foreign = scalar_new_foreign(page, 100), *copy = scalar_new(), *third = scalar_new();
    scalar_copy(copy, foreign);
    scalar_copy(third, copy);
    printf("\"foreign\": %d, ", copy->text == page && third->text == page);
    scalar_free(foreign);
    scalar_free(third);
    scalar_free(copy);
}

/* What a scalar of a key needs besides the key. */
static void keys(void)
{
    struct key *key = key_share("a key of some length", 20);
    scalars_end(); /* all were freed: whole arenas are counted */
    size_t before = in_use();
    for (size_t i = 0; i < EACH; i++)
        scalars[i] = scalar_new_key(key);
    printf("\"key_bytes\": %.4g, ", (double)(in_use() - before) / EACH);
    for (size_t i = 0; i < EACH; i++)
        scalar_free(scalars[i]);
    key_release(key);
    keys_end();
}

/* Bytes of counters that each of EACH / 10 groups of so many sharers has. */
static double group_bytes(size_t sharers)
{
    size_t groups = EACH / 10;
    for (size_t i = 0; i < groups; i++)
        for (size_t j = 0; j < sharers; j++) {
            size_t at = i * sharers + j;
            scalars[at] = j ? scalar_new() : scalar_new_text(text, 100);
            if (j)
                scalar_copy(scalars[at], scalars[i * sharers]);
        }
    size_t counters = arena_counters.live;
    for (size_t i = 0; i < groups * sharers; i++)
        scalar_free(scalars[i]);
    scalars_end();
    return (double)(counters * arena_counters.piece_bytes) / (double)groups;
}

int main(void)
{
    memset(text, 'a', sizeof text);
    printf("{\"layout\": \"%s\", ", LAYOUT_NAME);
    lengths();
    printf("\"written\": %.4g, ", written());
    uncowable();
    sharing();
    keys();
    double pair = group_bytes(2), three = group_bytes(3);
    printf("\"pair_bytes\": %g, \"counter_bytes\": %g}\n", pair, three);
    return 0;
}
