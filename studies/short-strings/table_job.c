/*
 * Benchmark E: what perl's mktables does, in small. Lines that list code points with their properties (generated here,
 * in the form of UnicodeData.txt) are split into fields; for each property and value there is a table, a hash's entry,
 * with the ranges of code points that have it; the name of each code point is kept by its hexadecimal number. At the
 * end the tables are written in the order of their names, a line a range.
 */
#include "table_job.h"

#include "digest.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct range {
    struct scalar *first, *last, *value;
};

struct table {
    struct range *ranges;
    size_t count, room;
};

static uint64_t state;

static unsigned draw(unsigned below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

/* --- The input. --- */

static const char *const categories[] = {"Lu", "Ll", "Lo", "Mn", "Nd", "Po", "Sm", "So"};
static const char *const directions[] = {"L", "R", "AL", "EN", "ON", "NSM"};
static const char *const scripts[] = {"LATIN", "CYRILLIC", "DEVANAGARI", "HANGUL", "CJK UNIFIED", "LINEAR B"};
static const char *const kinds[] = {"LETTER", "SMALL LETTER", "SYLLABLE", "IDEOGRAPH", "SIGN", "DIGIT"};

/* The next line; properties stay the same for some lines, so that there are ranges. */
static size_t next_line(char *line, size_t room, unsigned point)
{
    static unsigned category, direction, script, class;
    if (!draw(12))
        category = draw(8);
    if (!draw(60))
        direction = draw(6);
    if (!draw(90))
        class = draw(240);
    if (!draw(200))
        script = draw(6);
    return (size_t)snprintf(line, room, "%04X;%s %s %X;%s;%u;%s;;;;;N;;;%04X;%s\n", point, scripts[script],
                            kinds[draw(6)], draw(4096), categories[category], class, directions[direction], point + 32,
                            scripts[script]);
}

/* --- The work. --- */

/* perl: split /;/, $line; the fields are new scalars. */
static void split(struct array *fields, const struct scalar *line)
{
    const char *text = scalar_text(line), *end = text + scalar_length(line);
    for (;;) {
        const char *stop = memchr(text, ';', (size_t)(end - text));
        array_push(fields, scalar_new_text(text, (size_t)((stop ? stop : end) - text)));
        if (!stop)
            return;
        text = stop + 1;
    }
}

static struct scalar *integer(unsigned value)
{
    struct scalar *s = scalar_new();
    scalar_set_integer(s, value);
    return s;
}

/* The code point has the value: the table's last range becomes longer, or there is a new one. */
static void add(struct table *table, unsigned point, struct scalar *value)
{
    if (table->count) {
        struct range *last = &table->ranges[table->count - 1];
        if (BODY(last->last)->integer + 1 == (int64_t)point) {
            scalar_set_integer(last->last, point);
            return;
        }
    }
    if (table->count == table->room) {
        table->room = table->room ? table->room * 2 : 4;
        table->ranges = realloc(table->ranges, table->room * sizeof *table->ranges);
        if (!table->ranges)
            exit(3);
    }
    struct range *range = &table->ranges[table->count++];
    range->first = integer(point);
    range->last = integer(point);
    scalar_copy(range->value = scalar_new(), value);
}

static const struct {
    const char *name;
    size_t field;
} properties[] = {{"General_Category", 2}, {"Canonical_Combining_Class", 3}, {"Bidi_Class", 4}, {"Script", 13}};

static void read_line(struct hash *tables, struct hash *names, struct array *fields, struct scalar *joined, unsigned point)
{
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
        struct scalar *value = fields->items[properties[i].field];
        scalar_set(joined, properties[i].name, strlen(properties[i].name)); /* "$property=$value" */
        scalar_append(joined, "=", 1);
        scalar_append_scalar(joined, value);
        void **table = hash_at(tables, scalar_text(joined), scalar_length(joined));
        if (!*table && !(*table = calloc(1, sizeof(struct table))))
            exit(3);
        add(*table, point, value);
    }
    const struct scalar *number = fields->items[0];
    void **name = hash_at(names, scalar_text(number), scalar_length(number));
    if (!*name)
        *name = scalar_new();
    scalar_copy(*name, fields->items[1]);
}

/* A table's text: "first\tlast\tvalue\n" for each range. */
static void write_table(struct scalar *output, struct scalar *line, const struct table *table)
{
    scalar_set(output, "", 0);
    for (size_t i = 0; i < table->count; i++) {
        const struct range *range = &table->ranges[i];
        scalar_substr(line, range->first, 0, 99);
        scalar_append(line, "\t", 1);
        scalar_append_scalar(line, range->last);
        scalar_append(line, "\t", 1);
        scalar_append_scalar(line, range->value);
        scalar_append(line, "\n", 1);
        scalar_append_scalar(output, line);
    }
}

static void free_table(void *pointer)
{
    struct table *table = pointer;
    for (size_t i = 0; i < table->count; i++) {
        scalar_free(table->ranges[i].first);
        scalar_free(table->ranges[i].last);
        scalar_free(table->ranges[i].value);
    }
    free(table->ranges);
    free(table);
}

static void free_scalar(void *scalar)
{
    scalar_free(scalar);
}

void table_job(size_t lines)
{
    struct hash tables = {0}, names = {0};
    struct array fields = {0}, keys = {0};
    struct scalar *line = scalar_new(), *joined = scalar_new(), *output = scalar_new(), *written = scalar_new();
    char text[256];
    state = 4;
    joined->flags |= IS_TARGET;
    unsigned point = 0;
    for (size_t i = 0; i < lines; i++) {
        point += draw(40) ? 1 : 1 + draw(30);
        scalar_set(line, text, next_line(text, sizeof text, point));
        scalar_substr(line, line, 0, scalar_length(line) - 1); /* chomp */
        split(&fields, line);
        read_line(&tables, &names, &fields, joined, point);
        array_clear(&fields);
    }
    hash_keys(&tables, &keys);
    for (size_t i = 0; i < keys.count; i++) {
        struct scalar *name = keys.items[i];
        write_table(output, line, *hash_at(&tables, scalar_text(name), scalar_length(name)));
        scalar_copy(written, name); /* # name */
        scalar_append(written, "\n", 1);
        scalar_append_scalar(written, output);
        digest_text(written);
    }
    array_end(&keys);
    hash_keys(&names, &keys);
    for (size_t i = 0; i < keys.count; i += 101) {
        struct scalar *number = keys.items[i];
        digest_text(*hash_at(&names, scalar_text(number), scalar_length(number)));
    }
    array_end(&keys);
    array_end(&fields);
    hash_end(&tables, free_table);
    hash_end(&names, free_scalar);
    scalar_free(line);
    scalar_free(joined);
    scalar_free(output);
    scalar_free(written);
}
