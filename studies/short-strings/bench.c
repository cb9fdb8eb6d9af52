/*
 * What the mail's benchmarks do with strings, on the scalars of one layout:
 *
 *   A, B   my $x = 'a' x $n; my $y = substr($x, 3, $n - 5); my $z = $y . "xyz";   $n = 12 and 24, COUNT times
 *   A-new, B-new   the same with new scalars each time, all freed at its end: what a function's results do
 *   C, D   push @a, "aaa$_" and push @a, "aaaaaaaaaaaaaaaaaaaaaa$_", for 1..COUNT
 *   E      tables from COUNT / 10 lines of text (table_job.c)
 *
 *   bench BENCHMARK COUNT
 *
 * As in perl, an operator writes into a target of its own that it keeps (a PADTMP), variables keep their buffers
 * between iterations, and assignment is scalar_copy (sv_setsv). What an interpreter does besides is not here.
 * Prints one JSON line: `digest`, a number that depends on all texts and has to be the same in every layout.
 */
#include "digest.h"
#include "table.h"
#include "table_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct scalar *new_target(void)
{
    struct scalar *s = scalar_new();
    s->flags |= IS_TARGET;
    return s;
}

/* Benchmarks A and B. */
static void expressions(size_t length, size_t count)
{
    struct scalar *repeated = new_target(), *part = new_target(), *joined = new_target();
    struct scalar *a = scalar_new_text("a", 1), *xyz = scalar_new_text("xyz", 3);
    struct scalar *x = scalar_new(), *y = scalar_new(), *z = scalar_new();
    for (size_t i = 0; i < count; i++) {
        scalar_repeat(repeated, a, length);
        scalar_copy(x, repeated);
        scalar_substr(part, x, 3, length - 5);
        scalar_copy(y, part);
        scalar_set(joined, scalar_text(y), scalar_length(y));
        scalar_append_scalar(joined, xyz);
        scalar_copy(z, joined);
        if (i + 1 == count)
            digest_text(z);
        scalar_clear(x);
        scalar_clear(y);
        scalar_clear(z);
    }
    struct scalar *all[] = {repeated, part, joined, a, xyz, x, y, z};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        scalar_free(all[i]);
}

/* The same with nothing kept from one iteration to the next: results are temporaries whose buffers are taken. */
static struct scalar *assigned(struct scalar *result)
{
    struct scalar *variable = scalar_new();
    result->flags |= IS_TEMPORARY;
    scalar_copy(variable, result);
    scalar_free(result);
    return variable;
}

static void new_expressions(size_t length, size_t count)
{
    struct scalar *a = scalar_new_text("a", 1), *xyz = scalar_new_text("xyz", 3);
    for (size_t i = 0; i < count; i++) {
        struct scalar *result = scalar_new();
        scalar_repeat(result, a, length);
        struct scalar *x = assigned(result);
        result = scalar_new();
        scalar_substr(result, x, 3, length - 5);
        struct scalar *y = assigned(result);
        result = scalar_new_text(scalar_text(y), scalar_length(y));
        scalar_append_scalar(result, xyz);
        struct scalar *z = assigned(result);
        if (i + 1 == count)
            digest_text(z);
        scalar_free(x);
        scalar_free(y);
        scalar_free(z);
    }
    scalar_free(a);
    scalar_free(xyz);
}

/* Benchmarks C and D. The array is emptied at the end, as perl empties a `my @a` when it leaves the file's scope. */
static void pushes(const char *prefix, size_t count)
{
    struct array array = {0};
    struct scalar *number = scalar_new(), *joined = new_target();
    for (size_t i = 1; i <= count; i++) {
        scalar_set_integer(number, (int64_t)i);
        scalar_set(joined, prefix, strlen(prefix));
        scalar_append_scalar(joined, number);
        struct scalar *pushed = scalar_new();
        scalar_copy(pushed, joined);
        array_push(&array, pushed);
    }
    for (size_t i = 0; i < array.count; i += 997)
        digest_text(array.items[i]);
    array_end(&array);
    scalar_free(number);
    scalar_free(joined);
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    size_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    if (!strcmp(which, "A"))
        expressions(12, count);
    else if (!strcmp(which, "B"))
        expressions(24, count);
    else if (!strcmp(which, "A-new"))
        new_expressions(12, count);
    else if (!strcmp(which, "B-new"))
        new_expressions(24, count);
    else if (!strcmp(which, "C"))
        pushes("aaa", count);
    else if (!strcmp(which, "D"))
        pushes("aaaaaaaaaaaaaaaaaaaaaa", count);
    else if (!strcmp(which, "E"))
        table_job(count / 10);
    else {
        fputs("usage: bench A|B|A-new|B-new|C|D|E COUNT\n", stderr);
        return 2;
    }
    printf("{\"layout\": \"%s\", \"benchmark\": \"%s\", \"count\": %zu, \"digest\": %u}\n", LAYOUT_NAME, which, count,
           digest_value());
    return 0;
}
