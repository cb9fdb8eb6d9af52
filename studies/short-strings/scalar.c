/*
 * Perl-like scalars: see scalar.h. Each operation does what the function of perl 5.26 named beside it does to heads,
 * bodies and buffers, as far as texts and plain numbers go. Short texts are as in the branch that the mail tells of;
 * how buffers are shared in cow3 is ours, after its plan.
 */
#include "scalar.h"

#include "buffers.h"

/* perl: new_SV. */
struct scalar *scalar_new(void)
{
    struct scalar *s = arena_take(&arena_heads);
    s->any = NULL;
    s->references = 1;
    s->flags = 0;
    s->text = NULL;
    return s;
}

struct scalar *scalar_new_text(const char *bytes, size_t length)
{
    struct scalar *s = scalar_new();
    scalar_set(s, bytes, length);
    return s;
}

struct scalar *scalar_new_foreign(const char *bytes, size_t length)
{
    struct scalar *s = scalar_new();
    give_body(s);
    s->text = (char *)(uintptr_t)bytes; /* never written to: IS_FOREIGN */
    BODY(s)->cur = length;
    s->flags |= HAS_TEXT | IS_FOREIGN;
    return s;
}

/* A scalar whose text, and in cow3 whose body, is the key's: perl's newSVhek. */
struct scalar *scalar_new_key(struct key *key)
{
    struct scalar *s = scalar_new();
    key->references++;
#ifdef HAS_LINKS
    s->any = &key->cur;
    s->flags = TYPE_PV | HAS_TEXT | IS_KEY | IS_KEY_BODY;
#else
    give_body(s);
    BODY(s)->cur = key->cur;
    s->flags |= HAS_TEXT | IS_KEY;
#endif
    s->text = key->text;
    return s;
}

/* perl: sv_free, sv_clear. */
void scalar_free(struct scalar *s)
{
    if (--s->references)
        return;
    drop_buffer(s);
    if (s->any)
        arena_give(&arena_bodies[TYPE(s)], s->any);
    arena_give(&arena_heads, s);
}

/* perl: sv_setpvn. */
void scalar_set(struct scalar *s, const char *bytes, size_t length)
{
    plain_for_new_value(s);
    char *text = reserve(s, length + 1);
    if (length) /* else bytes may be NULL */
        memcpy(text, bytes, length);
    end_text(s, length);
}

/* perl: SvPV_force and SvGROW. */
char *scalar_make_mutable(struct scalar *s, size_t room)
{
    if (!(s->flags & HAS_TEXT)) {
        if (s->flags & HAS_INTEGER)
            scalar_write_integer(s);
        else
            scalar_set(s, "", 0);
    } else if (s->flags & IS_NOT_MUTABLE) {
        make_plain(s, 1);
    }
    s->flags &= ~(HAS_INTEGER | HAS_NUMBER);
    return reserve(s, BODY(s)->cur + room + 1);
}

#ifdef HAS_COUNT_BYTE
#define APPEND_SPARE 2 /* sv_catpvn asks for two bytes more, so that what is appended to can be shared */
#else
#define APPEND_SPARE 0
#endif

/* perl: SvPV. */
static inline void want_text(struct scalar *s)
{
    if ((s->flags & (HAS_TEXT | HAS_INTEGER)) == HAS_INTEGER)
        scalar_write_integer(s);
}

/* perl: sv_catpvn. */
void scalar_append(struct scalar *s, const char *bytes, size_t length)
{
    char *text = scalar_make_mutable(s, length + APPEND_SPARE);
    size_t before = BODY(s)->cur;
    if (length)
        memcpy(text + before, bytes, length);
    end_text(s, before + length);
}

void scalar_append_scalar(struct scalar *s, struct scalar *other)
{
    want_text(other);
    size_t length = scalar_length(other);
    char *text = scalar_make_mutable(s, length + APPEND_SPARE);
    size_t before = BODY(s)->cur;
    memcpy(text + before, scalar_text(other), length);
    end_text(s, before + length);
}

/* perl: sv_setiv. */
void scalar_set_integer(struct scalar *s, int64_t value)
{
    if (s->flags & IS_NOT_MUTABLE)
        make_plain(s, 0);
    scalar_upgrade(s, TYPE_PVIV);
    BODY(s)->integer = value;
    s->flags = (s->flags & ~HAS_VALUE) | HAS_INTEGER;
}

void scalar_set_number(struct scalar *s, double value)
{
    if (s->flags & IS_NOT_MUTABLE)
        make_plain(s, 0);
    scalar_upgrade(s, TYPE_PVNV);
    BODY(s)->number = value;
    s->flags = (s->flags & ~HAS_VALUE) | HAS_NUMBER;
}

/* perl: sv_2pv_flags, of an integer. */
void scalar_write_integer(struct scalar *s)
{
    char digits[24], *end = digits + sizeof digits, *first = end;
    if ((s->flags & (HAS_TEXT | HAS_INTEGER)) != HAS_INTEGER)
        return;
    int64_t value = BODY(s)->integer;
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do
        *--first = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0)
        *--first = '-';
    size_t length = (size_t)(end - first);
    memcpy(reserve(s, length + 1), first, length);
    end_text(s, length);
    s->flags |= HAS_INTEGER;
}

/* perl: pp_repeat. */
void scalar_repeat(struct scalar *to, struct scalar *from, size_t count)
{
    want_text(from);
    size_t length = scalar_length(from), all;
    if (__builtin_mul_overflow(length, count, &all) || all > PTRDIFF_MAX / 2)
        checked(NULL, "a text"); /* no malloc gives so much, and sizes derived from it could wrap around */
    scalar_copy(to, from);
    char *text = scalar_make_mutable(to, all);
    if (length == 1)
        memset(text, *text, count);
    else
        for (size_t i = 1; i < count; i++)
            memcpy(text + i * length, text, length);
    end_text(to, all);
}

/* perl: pp_substr; in place as sv_chop does. */
void scalar_substr(struct scalar *to, struct scalar *from, size_t at, size_t length)
{
    want_text(from);
    char *text = to == from ? scalar_make_mutable(to, 0) : NULL;
    size_t all = scalar_length(from);
    if (at > all)
        at = all;
    if (length > all - at)
        length = all - at;
    if (!text) {
        scalar_set(to, scalar_text(from) + at, length);
        return;
    }
    memmove(text, text + at, length);
    end_text(to, length);
}

#include "copy.h"

/* perl: SAVEt_CLEARSV, in leave_scope. */
void scalar_clear(struct scalar *s)
{
    if (s->flags & IS_NOT_MUTABLE)
        make_plain(s, 0);
    s->flags &= ~HAS_VALUE;
}

/* perl: pp_undef. */
void scalar_undef(struct scalar *s)
{
    drop_buffer(s);
    s->flags &= ~HAS_VALUE;
}

size_t scalar_sharers(const struct scalar *s)
{
    return share_count(s);
}

void scalars_end(void)
{
    arena_end(&arena_heads);
    for (int type = TYPE_PV; type < TYPES; type++)
        arena_end(&arena_bodies[type]);
    arena_end(&arena_counters);
}
