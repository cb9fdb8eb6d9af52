/*
 * Property tests: random operations on a few scalars, and on plain copies of what they should hold. After each step
 * every text is compared and every invariant of the layout checked: who shares with whom, how many, whose the buffers
 * and bodies are, and whether the arenas have all that is not in use. To be built with -DCOUNT and sanitizers.
 *
 *   check SEEDS STEPS [FIRST_SEED]
 *
 * Prints one JSON line: steps that were done, what happened in them (times), and 1 for `sound`. What is wrong is said
 * on standard error, with its seed and step, and ends it with 1.
 */
#define _GNU_SOURCE
#include "scalar.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(LAYOUT_COW3)
#include "share_pair.h"
#elif defined(LAYOUT_COW1)
#include "share_ring.h"
#endif

#define SLOTS 20
#define LONGEST 4000

static struct slot {
    struct scalar *scalar;
    char *text; /* what it should hold; NULL: no text */
    size_t length;
    int has_integer;
    int64_t integer;
    int has_number;
    double number;
} slots[SLOTS];

static unsigned long long seed, step;
static const char *operation = "";
static const char *page; /* read-only */
static size_t page_bytes;

static void wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "check: %s: seed %llu, step %llu, %s: ", LAYOUT_NAME, seed, step, operation);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

/* --- Chance (splitmix64). --- */

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

/* Mostly short, often at the edge of a short text, seldom one that perl would rather share. */
static size_t draw_length(void)
{
    switch (draw(8)) {
    case 0: return 13 + draw(5);
    case 1: return draw(200);
    case 2: return draw(8) ? draw(60) : 1200 + draw(200);
    default: return draw(32);
    }
}

static char bytes[LONGEST + 1];

static size_t draw_bytes(void)
{
    size_t length = draw_length();
    for (size_t i = 0; i < length; i++)
        bytes[i] = (char)draw(256);
    return length;
}

/* --- What each scalar should hold. --- */

static void expect(struct slot *slot, const char *text, size_t length)
{
    char *copy = NULL;
    if (text) {
        copy = malloc(length + 1);
        memcpy(copy, text, length);
    }
    free(slot->text);
    slot->text = copy;
    slot->length = text ? length : 0;
    slot->has_integer = slot->has_number = 0;
}

static void expect_appended(struct slot *slot, const char *text, size_t length)
{
    char *both = malloc(slot->length + length + 1);
    if (slot->text)
        memcpy(both, slot->text, slot->length);
    memcpy(both + slot->length, text, length);
    length += slot->length;
    expect(slot, both, length);
    free(both);
}

static void expect_same(struct slot *to, const struct slot *from)
{
    expect(to, from->text, from->length);
    to->has_integer = from->has_integer;
    to->integer = from->integer;
    to->has_number = from->has_number;
    to->number = from->number;
}

/* The text that an integer without one gets where one is wanted. */
static void expect_written(struct slot *slot)
{
    char digits[32];
    if (slot->text || !slot->has_integer)
        return;
    int64_t integer = slot->integer;
    expect(slot, digits, (size_t)sprintf(digits, "%lld", (long long)integer));
    slot->has_integer = 1;
    slot->integer = integer;
}

/* --- Invariants. --- */

static void check_text(const struct slot *slot)
{
    const struct scalar *s = slot->scalar;
    if (!(s->flags & HAS_TEXT) != !slot->text)
        wrong("slot %d: has %s text", (int)(slot - slots), slot->text ? "no" : "a");
    if (!(s->flags & HAS_INTEGER) != !slot->has_integer || (slot->has_integer && BODY(s)->integer != slot->integer))
        wrong("slot %d: another integer", (int)(slot - slots));
    if (!(s->flags & HAS_NUMBER) != !slot->has_number || (slot->has_number && BODY(s)->number != slot->number))
        wrong("slot %d: another number", (int)(slot - slots));
    if (!slot->text)
        return;
    if (scalar_length(s) != slot->length || memcmp(scalar_text(s), slot->text, slot->length))
        wrong("slot %d: another text", (int)(slot - slots));
    if (s->text[slot->length])
        wrong("slot %d: no NUL at its end", (int)(slot - slots));
}

/* A buffer is one thing: in a body, a key's, foreign, or of malloc and large enough. */
static void check_buffer(const struct scalar *s)
{
    if (!s->text) {
        if (s->flags & (IS_NOT_MUTABLE | IS_SHORT | HAS_TEXT))
            wrong("flags of a buffer and none there");
        return;
    }
    int kinds = !!(s->flags & IS_SHORT) + !!(s->flags & IS_KEY) + !!(s->flags & IS_FOREIGN);
    if (kinds > 1 || (kinds == 0 && !scalar_len(s)))
        wrong("a buffer of %d kinds", kinds);
    if (!kinds && s->flags & HAS_TEXT && BODY(s)->cur >= scalar_len(s))
        wrong("a text larger than its buffer");
    if (s->flags & (IS_SHORT | IS_KEY) && s->flags & IS_COW)
        wrong("a short text, or a key's, is shared");
#ifdef HAS_LINKS
    if (!(s->flags & (IS_COW | IS_SHORT | IS_KEY_BODY)) && EXTRA(s))
        wrong("a link of one who shares with none");
#endif
#ifndef HAS_COW
    if (s->flags & (IS_COW | IS_SHORT))
        wrong("shared or short in a layout without");
#endif
}

/* All that have the buffer of slot `first` know of each other. */
static void check_sharers(int first, size_t *shared_counters)
{
    const struct scalar *s = slots[first].scalar;
    size_t sharers = 0;
    uintptr_t all = 0;
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].scalar->text == s->text && (s->flags & IS_COW || !(s->flags & (IS_KEY | IS_FOREIGN)))) {
            if ((slots[i].scalar->flags ^ s->flags) & (IS_COW | IS_FOREIGN))
                if (!(s->flags & IS_FOREIGN))
                    wrong("slots %d and %d have one buffer and other flags", first, i);
            if (slots[i].scalar->flags & IS_COW) {
                sharers++;
                all ^= (uintptr_t)slots[i].scalar;
            } else if (i != first && !(slots[i].scalar->flags & IS_FOREIGN)) {
                wrong("slots %d and %d have one buffer and do not share it", first, i);
            }
        }
    if (!(s->flags & IS_COW))
        return;
    size_t known = scalar_sharers(s);
    *shared_counters = 0;
    (void)all, (void)known;
#if defined(HAS_COUNT_BYTE)
    if (known != sharers)
        wrong("slot %d: %zu sharers, and its byte says %zu", first, sharers, known);
#elif defined(LAYOUT_COW3)
    /* Several groups may have one foreign text: only those of this one count. */
    if (!IS_COUNTED(s)) {
        const struct scalar *other = share_other(s);
        if (other == s || !(other->flags & IS_COW) || IS_COUNTED(other) || share_other(other) != s || other->text != s->text)
            wrong("slot %d: no pair", first);
        if (known != 2 || (!(s->flags & IS_FOREIGN) && sharers != 2))
            wrong("slot %d: a pair of %zu", first, sharers);
        return;
    }
    size_t counted = 0;
    all = 0;
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].scalar->flags & IS_COW && EXTRA(slots[i].scalar) == EXTRA(s)) {
            if (slots[i].scalar->text != s->text)
                wrong("slots %d and %d: one counter, two texts", first, i);
            counted++;
            all ^= (uintptr_t)slots[i].scalar;
            *shared_counters |= i < first; /* counted already */
        }
    *shared_counters = !*shared_counters;
    if (known != counted || counted < 2 || share_counter(s)->all != all || (!(s->flags & IS_FOREIGN) && sharers != counted))
        wrong("slot %d: a counter of %zu for %zu", first, known, counted);
#elif defined(LAYOUT_COW1)
    if (known < 2 || (!(s->flags & IS_FOREIGN) && known != sharers))
        wrong("slot %d: a ring of %zu for %zu", first, known, sharers);
#endif
}

/* Buffers, bodies, heads and counters: as many as the scalars have. */
static void check_arenas(size_t counters)
{
    size_t bodies[TYPES] = {0}, buffers = 0;
    for (int i = 0; i < SLOTS; i++) {
        const struct scalar *s = slots[i].scalar;
        if (s->any && !(s->flags & IS_KEY_BODY))
            bodies[TYPE(s)]++;
#ifdef HAS_EXTRA
        if (s->flags & IS_SHORT && scalar_short_body(s) != s->any)
            bodies[scalar_short_body(s)->cur]++;
#endif
        int is_first = s->text && !(s->flags & (IS_SHORT | IS_KEY | IS_FOREIGN));
        for (int j = 0; j < i && is_first; j++)
            is_first = slots[j].scalar->text != s->text;
        buffers += (size_t)is_first;
    }
    if (counts.buffers_live != buffers)
        wrong("%llu buffers live, %zu used", counts.buffers_live, buffers);
    if (arena_heads.live != SLOTS || !arena_is_sound(&arena_heads))
        wrong("%zu heads live", arena_heads.live);
    if (arena_counters.live != counters || !arena_is_sound(&arena_counters))
        wrong("%zu counters live, %zu used", arena_counters.live, counters);
    for (int type = TYPE_PV; type < TYPES; type++)
        if (arena_bodies[type].live != bodies[type] || !arena_is_sound(&arena_bodies[type]))
            wrong("bodies of type %d: %zu live, %zu used", type, arena_bodies[type].live, bodies[type]);
}

static void check_keys(void)
{
    size_t live = 0;
    for (int i = 0; i < SLOTS; i++) {
        const struct scalar *s = slots[i].scalar;
        if (!(s->flags & IS_KEY))
            continue;
        size_t users = 0;
        int is_first = 1;
        for (int j = 0; j < SLOTS; j++)
            if (slots[j].scalar->text == s->text) {
                users++;
                is_first &= j >= i;
            }
        live += (size_t)is_first;
        if (key_of(s)->references != users)
            wrong("a key with %zu references has %zu users", key_of(s)->references, users);
    }
    if (keys_live() != live)
        wrong("%zu keys live, %zu used", keys_live(), live);
}

static void check(void)
{
    size_t counters = 0;
    for (int i = 0; i < SLOTS; i++) {
        size_t is_counter = 0;
        check_text(&slots[i]);
        check_buffer(slots[i].scalar);
        if (slots[i].scalar->text)
            check_sharers(i, &is_counter);
        counters += is_counter;
    }
    check_arenas(counters);
    check_keys();
}

/* --- Operations: on the scalar, and on what it should hold. --- */

static void set(struct slot *slot, struct slot *other)
{
    (void)other;
    size_t length = draw_bytes();
    scalar_set(slot->scalar, bytes, length);
    expect(slot, bytes, length);
}

static void append(struct slot *slot, struct slot *other)
{
    (void)other;
    size_t length = draw_bytes();
    expect_written(slot);
    if (slot->length + length > LONGEST)
        length = 0;
    scalar_append(slot->scalar, bytes, length);
    expect_appended(slot, bytes, length);
}

static void append_scalar(struct slot *slot, struct slot *other)
{
    expect_written(other);
    scalar_write_integer(other->scalar);
    if (slot->length + other->length > LONGEST)
        return;
    scalar_append_scalar(slot->scalar, other->scalar);
    expect_written(slot);
    size_t length = other->length;
    memcpy(bytes, other->text ? other->text : "", length);
    expect_appended(slot, bytes, length);
}

static void copy(struct slot *slot, struct slot *other)
{
    scalar_copy(slot->scalar, other->scalar);
    if (slot != other)
        expect_same(slot, other);
}

/* As a temporary, or as an operator's target: the text may be taken, and need not. */
static void copy_flagged(struct slot *slot, struct slot *other, uint32_t flag)
{
    other->scalar->flags |= flag;
    scalar_copy(slot->scalar, other->scalar);
    other->scalar->flags &= ~flag;
    if (slot == other)
        return;
    expect_same(slot, other);
    if (!(other->scalar->flags & HAS_VALUE))
        expect(other, NULL, 0);
}

static void copy_temporary(struct slot *slot, struct slot *other)
{
    copy_flagged(slot, other, IS_TEMPORARY);
}

static void copy_target(struct slot *slot, struct slot *other)
{
    copy_flagged(slot, other, IS_TARGET);
}

static void steal(struct slot *slot, struct slot *other)
{
    scalar_steal(slot->scalar, other->scalar);
    if (slot == other)
        return;
    expect_same(slot, other);
    expect(other, NULL, 0);
}

static void take_substr(struct slot *slot, struct slot *other)
{
    expect_written(other);
    size_t at = draw(other->length + 2), length = draw(other->length + 2);
    size_t from = at < other->length ? at : other->length;
    size_t most = other->length - from;
    scalar_substr(slot->scalar, other->scalar, at, length);
    size_t taken = length < most ? length : most;
    memcpy(bytes, other->text ? other->text + from : "", taken);
    expect(slot, bytes, taken);
}

static void upgrade(struct slot *slot, struct slot *other)
{
    (void)other;
    const char *before = slot->scalar->text;
    scalar_upgrade(slot->scalar, TYPE_PV + (enum type)draw(TYPES - TYPE_PV));
    if (slot->scalar->text != before)
        wrong("the text has moved");
}

static void write_into(struct slot *slot, struct slot *other)
{
    (void)other;
    char *text = scalar_make_mutable(slot->scalar, draw(40));
    expect_written(slot);
    if (!slot->text)
        expect(slot, "", 0);
    slot->has_integer = slot->has_number = 0;
    if (slot->length) {
        size_t at = draw(slot->length);
        text[at] = slot->text[at] = (char)draw(256);
    }
}

static void clear(struct slot *slot, struct slot *other)
{
    (void)other;
    scalar_clear(slot->scalar);
    expect(slot, NULL, 0);
}

static void undefine(struct slot *slot, struct slot *other)
{
    (void)other;
    scalar_undef(slot->scalar);
    expect(slot, NULL, 0);
    if (slot->scalar->text)
        wrong("it has a buffer");
}

static void replace(struct slot *slot, struct scalar *by)
{
    slot->scalar->references++; /* a second reference keeps it */
    scalar_free(slot->scalar);
    check_text(slot);
    scalar_free(slot->scalar);
    slot->scalar = by;
}

static void renew(struct slot *slot, struct slot *other)
{
    (void)other;
    size_t length = draw_bytes();
    if (draw(4)) {
        replace(slot, scalar_new_text(length ? bytes : NULL, length));
        expect(slot, bytes, length);
    } else {
        replace(slot, scalar_new());
        expect(slot, NULL, 0);
    }
}

/* Of the read-only page: to the NUL that it has every 64 bytes. */
static void renew_foreign(struct slot *slot, struct slot *other)
{
    (void)other;
    size_t length = draw(64), at = 64 * draw(page_bytes / 64) + 63 - length;
    replace(slot, scalar_new_foreign(page + at, length));
    expect(slot, page + at, length);
}

static void renew_key(struct slot *slot, struct slot *other)
{
    (void)other;
    size_t length = draw(2) ? 3 + draw(2) : 20 + draw(2); /* few texts, so that many have the same */
    memset(bytes, 'k', length);
    bytes[0] = (char)('a' + draw(3));
    struct key *key = key_share(bytes, length);
    replace(slot, scalar_new_key(key));
    key_release(key);
    expect(slot, bytes, length);
}

static void set_integer(struct slot *slot, struct slot *other)
{
    (void)other;
    int64_t value = (int64_t)(draw(2) ? draw(1000) : draw(UINT64_MAX));
    scalar_set_integer(slot->scalar, value);
    expect(slot, NULL, 0);
    slot->has_integer = 1;
    slot->integer = value;
}

static void set_number(struct slot *slot, struct slot *other)
{
    (void)other;
    double value = 0.5 * (double)draw(1000);
    scalar_set_number(slot->scalar, value);
    expect(slot, NULL, 0);
    slot->has_number = 1;
    slot->number = value;
}

static void write_integer(struct slot *slot, struct slot *other)
{
    (void)other;
    scalar_write_integer(slot->scalar);
    expect_written(slot);
}

static void repeat(struct slot *slot, struct slot *other)
{
    size_t count = draw(6);
    expect_written(other);
    scalar_write_integer(other->scalar);
    if (other->length * count > LONGEST)
        return;
    scalar_repeat(slot->scalar, other->scalar, count);
    size_t length = other->length;
    for (size_t i = 0; i < count && length; i++)
        memcpy(bytes + i * length, other->text, length);
    expect(slot, bytes, length * count);
}

static const struct {
    const char *name;
    void (*run)(struct slot *, struct slot *);
    unsigned weight;
} operations[] = {
    {"set", set, 4}, {"append", append, 4}, {"append_scalar", append_scalar, 2}, {"copy", copy, 12},
    {"copy of a temporary", copy_temporary, 3}, {"copy of a target", copy_target, 3}, {"steal", steal, 3},
    {"substr", take_substr, 3}, {"upgrade", upgrade, 3}, {"make mutable", write_into, 3}, {"clear", clear, 2},
    {"undef", undefine, 2}, {"free and new", renew, 4}, {"free and foreign", renew_foreign, 2},
    {"free and key", renew_key, 2}, {"set integer", set_integer, 2}, {"write integer", write_integer, 2},
    {"set number", set_number, 1}, {"repeat", repeat, 1},
};
#define OPERATIONS (sizeof operations / sizeof *operations)

static void run(unsigned long long steps)
{
    unsigned weights = 0;
    for (size_t i = 0; i < OPERATIONS; i++)
        weights += operations[i].weight;
    state = seed;
    for (int i = 0; i < SLOTS; i++)
        slots[i] = (struct slot){.scalar = scalar_new()};
    for (step = 0; step < steps; step++) {
        unsigned drawn = (unsigned)draw(weights), i = 0;
        while (drawn >= operations[i].weight)
            drawn -= operations[i++].weight;
        operation = operations[i].name;
        struct slot *slot = &slots[draw(SLOTS)];
        operations[i].run(slot, &slots[draw(SLOTS)]);
        check();
    }
    operation = "the end";
    for (int i = 0; i < SLOTS; i++) {
        scalar_free(slots[i].scalar);
        free(slots[i].text);
    }
    if (arena_heads.live || arena_counters.live || keys_live() || counts.buffers_live)
        wrong("not all was freed");
    for (int type = TYPE_PV; type < TYPES; type++)
        if (arena_bodies[type].live)
            wrong("not all bodies were freed");
    scalars_end();
    keys_end();
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("usage: check SEEDS STEPS [FIRST_SEED]\n", stderr);
        return 2;
    }
    unsigned long long seeds = strtoull(argv[1], NULL, 10), steps = strtoull(argv[2], NULL, 10);
    unsigned long long first = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    page_bytes = 4096;
    char *writable = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < page_bytes; i++)
        writable[i] = (char)((i + 1) % 64 ? 'a' + i % 26 : 0);
    mprotect(writable, page_bytes, PROT_READ); /* a write to it ends the program */
    page = writable;
    for (seed = first; seed < first + seeds; seed++)
        run(steps);
    printf("{\"layout\": \"%s\", \"steps\": %llu, \"sound\": 1, \"shared\": %llu, \"copied\": %llu, \"stolen\": %llu, "
           "\"keyed\": %llu, \"promoted\": %llu, \"demoted\": %llu, \"paired\": %llu, \"no_byte\": %llu, "
           "\"buffers\": %llu}\n",
           LAYOUT_NAME, seeds * steps, counts.shared, counts.copied, counts.stolen, counts.keyed, counts.promoted,
           counts.demoted, counts.paired, counts.no_byte, counts.buffers);
    return 0;
}
