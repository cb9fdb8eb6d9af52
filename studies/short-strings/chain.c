/*
 * N scalars share one buffer and are freed one after the other in a drawn order: how many sharers are looked at in
 * that, counted, not timed. One ring of them all (-DLAYOUT_COW1) is walked by each that leaves: about N * N / 2 looks.
 * Counters (-DLAYOUT_COW3) need one look each. To be built with -DCOUNT.
 *
 *   chain N…
 *
 * Prints one JSON line: `steps`, a list, looks for each N; `left`, buffers that were not freed (0).
 */
#include "scalar.h"

#include <stdio.h>
#include <stdlib.h>

/* An order of N, drawn by Fisher and Yates with a fixed seed. */
static void shuffle(struct scalar **scalars, size_t count)
{
    uint64_t state = 20170505;
    for (size_t i = count; i > 1; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t j = (state >> 33) % i;
        struct scalar *other = scalars[i - 1];
        scalars[i - 1] = scalars[j];
        scalars[j] = other;
    }
}

static unsigned long long steps(size_t count)
{
    struct scalar **scalars = calloc(count, sizeof *scalars);
    unsigned long long before = counts.steps;
    if (!scalars)
        return 0;
    scalars[0] = scalar_new_text("a text that is too long for a body", 34);
    for (size_t i = 1; i < count; i++)
        scalar_copy(scalars[i] = scalar_new(), scalars[0]);
    if (scalar_sharers(scalars[count / 2]) != count) {
        fprintf(stderr, "chain: %zu share, not %zu\n", scalar_sharers(scalars[count / 2]), count);
        exit(1);
    }
    shuffle(scalars, count);
    for (size_t i = 0; i < count; i++)
        scalar_free(scalars[i]);
    free(scalars);
    return counts.steps - before;
}

int main(int argc, char **argv)
{
    printf("{\"layout\": \"%s\", \"steps\": [", LAYOUT_NAME);
    for (int i = 1; i < argc; i++)
        printf("%s%llu", i > 1 ? ", " : "", steps(strtoull(argv[i], NULL, 10)));
    printf("], \"left\": %llu}\n", counts.buffers_live);
    return 0;
}
