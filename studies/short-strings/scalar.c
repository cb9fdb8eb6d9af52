/*
 * Perl-like scalars: see scalar.h. Each operation does what the function of perl 5.26 named beside it does to heads,
 * bodies and buffers, as far as texts and plain numbers go. Short texts are as in the branch that the mail tells of;
 * how buffers are shared in cow3 is ours, after its plan.
 */
#include "scalar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct counts counts;

#define BODY_BYTES(last) (offsetof(struct body, last) + 8)
#ifdef HAS_EXTRA
#define PV_BYTES BODY_BYTES(extra) /* cur, len, extra: 24 */
#else
#define PV_BYTES BODY_BYTES(len) /* cur, len: 16 */
#endif

struct arena arena_heads = ARENA(sizeof(struct scalar));
struct arena arena_bodies[TYPES] = {
    [TYPE_PV] = ARENA(PV_BYTES),
    [TYPE_PVIV] = ARENA(BODY_BYTES(integer)),
    [TYPE_PVNV] = ARENA(BODY_BYTES(number)),
    [TYPE_PVMG] = ARENA(BODY_BYTES(magic)),
};
struct arena arena_counters = ARENA(16);

#if defined(LAYOUT_CLASSIC)
#include "share_none.h"
#elif defined(HAS_COUNT_BYTE)
#include "share_byte.h"
#elif defined(LAYOUT_COW3)
#include "share_pair.h"
#else
#include "share_ring.h"
#endif

/* When a buffer is shared rather than copied: perl's thresholds (sv.c). */
#define WASTE_MOST 80      /* SV_COW_MAX_WASTE_THRESHOLD: bytes of the buffer that the text does not use */
#define WASTE_FACTOR 2     /* SV_COW_MAX_WASTE_FACTOR_THRESHOLD */
#define LARGE_BYTES 1250   /* SV_COWBUF_THRESHOLD: shared even where the other has a buffer already */
#define LEAST_GROWTH 10    /* bytes, in sv_grow */

/*
 * Whether a buffer is shared with the target of an operator. perl does. But the target lets go of it as soon as its
 * operator is run again, and takes a new one: that is the one malloc that a copy costs, and the sharing besides. cow3
 * copies, and takes what is large.
 */
#if defined(HAS_COUNT_BYTE) || defined(LAYOUT_COW1)
#define SHARES_WITH_TARGETS 1
#endif

static void *checked(void *memory)
{
    if (!memory) {
        fputs("short-strings: no memory for a buffer\n", stderr);
        exit(3);
    }
    return memory;
}

static void buffer_free(char *buffer)
{
    UNCOUNTED(buffers_live);
    free(buffer);
}

static void *body_new(enum type type)
{
    void *body = arena_take(&arena_bodies[type]);
    memset(body, 0, arena_bodies[type].piece_bytes);
    return body;
}

static inline void forget_buffer(struct scalar *s)
{
    s->text = NULL;
    BODY(s)->len = 0;
#ifdef HAS_EXTRA
    BODY(s)->extra = 0;
#endif
}

#ifdef HAS_EXTRA
/* A short text goes: and with it the body that it was in, where that is not this scalar's any more. */
static inline void drop_short(struct scalar *s)
{
    struct body *body = scalar_short_body(s);
    if (body != s->any)
        arena_give(&arena_bodies[body->cur], body);
    s->flags &= ~IS_SHORT;
}
#endif

/* perl: SvPV_free. The scalar has no buffer any more, and no body where that was a key's. */
static void drop_buffer(struct scalar *s)
{
    if (!s->text)
        return;
    if (s->flags & IS_KEY) {
        key_release(key_of(s));
        if (s->flags & IS_KEY_BODY) {
            s->flags &= ~(IS_KEY | IS_KEY_BODY | TYPE_MASK);
            s->any = s->text = NULL;
            return;
        }
        s->flags &= ~IS_KEY;
#ifdef HAS_EXTRA
    } else if (s->flags & IS_SHORT) {
        drop_short(s);
#endif
    } else if ((!(s->flags & IS_COW) || share_leave(s)) && !(s->flags & IS_FOREIGN)) {
        buffer_free(s->text);
    }
    s->flags &= ~IS_FOREIGN;
    forget_buffer(s);
}

/* An empty body for the text of a scalar that has none. */
static inline void give_body(struct scalar *s)
{
    struct body *body = arena_take(&arena_bodies[TYPE_PV]);
    s->any = body;
    s->flags |= TYPE_PV;
    body->cur = 0;
    forget_buffer(s);
}

/* perl: sv_upgrade. */
void scalar_upgrade(struct scalar *s, enum type type)
{
    enum type old_type = TYPE(s);
    if (type <= old_type)
        return;
    struct body *body = body_new(type), *old = s->any;
    s->any = body;
    s->flags = (s->flags & ~TYPE_MASK) | type;
    if (!old)
        return;
#ifdef HAS_LINKS
    if (s->flags & IS_KEY_BODY) {
        s->flags &= ~IS_KEY_BODY;
        body->cur = old->cur;
        return;
    }
#endif
    memcpy(body, old, arena_bodies[old_type].piece_bytes);
#ifdef HAS_LINKS
    share_settle(s);
#endif
#ifdef HAS_EXTRA
    if (s->flags & IS_SHORT && scalar_short_body(s) == old) {
        old->cur = old_type; /* it is the buffer from now on */
        return;
    }
#endif
    arena_give(&arena_bodies[old_type], old);
}

#ifdef HAS_COUNT_BYTE
#define SPARE_BYTES 1 /* so that there is mostly a byte for the count */
#else
#define SPARE_BYTES 0
#endif

static inline char *set_buffer(struct scalar *s, char *buffer, size_t len)
{
    BODY(s)->len = len;
#ifdef HAS_EXTRA
    BODY(s)->extra = 0;
#endif
    return s->text = buffer;
}

static inline char *buffer_new(size_t bytes)
{
    COUNTED(buffers);
    COUNTED(buffers_live);
    return checked(malloc(bytes));
}

/* perl: sv_grow. A buffer with room for `need` bytes, the NUL among them, where the one there is too small. */
static char *grow(struct scalar *s, size_t need)
{
#ifdef HAS_EXTRA
    if (!s->text && need <= SHORT_BYTES) {
        s->flags |= IS_SHORT;
        return s->text = BODY(s)->buffer;
    }
#endif
    need += SPARE_BYTES;
    if (!s->text) { /* the first size is not rounded: most often it is what is needed */
        if (need < LEAST_GROWTH)
            need = LEAST_GROWTH;
        return set_buffer(s, buffer_new(need), need);
    }
    size_t least = BODY(s)->cur + (BODY(s)->cur >> 2) + LEAST_GROWTH;
    need = ((need > least ? need : least) + 7) & ~(size_t)7;
#ifdef HAS_EXTRA
    if (s->flags & IS_SHORT) {
        char *buffer = buffer_new(need);
        memcpy(buffer, s->text, SHORT_BYTES);
        drop_short(s);
        return set_buffer(s, buffer, need);
    }
#endif
    COUNTED(resized);
    return set_buffer(s, checked(realloc(s->text, need)), need);
}

/* perl: SvGROW, of a scalar whose buffer is its own. */
static inline char *reserve(struct scalar *s, size_t need)
{
#ifdef HAS_EXTRA
    if (s->flags & IS_SHORT)
        return need <= SHORT_BYTES ? s->text : grow(s, need);
#endif
    return BODY(s)->len >= need ? s->text : grow(s, need);
}

static inline void end_text(struct scalar *s, size_t length)
{
    s->text[length] = 0;
    BODY(s)->cur = length;
    s->flags = (s->flags & ~HAS_VALUE) | HAS_TEXT;
}

/* perl: sv_force_normal_flags. A buffer that others have, or that is not ours, is left; its text copied, or not. */
static void make_plain(struct scalar *s, int keep)
{
    const char *text = s->text;
    size_t length = BODY(s)->cur;
    if (s->flags & IS_KEY) {
        struct key *key = key_of(s);
        if (!keep) {
            drop_buffer(s);
            return;
        }
        if (s->flags & IS_KEY_BODY)
            s->any = body_new(TYPE_PV);
        s->flags &= ~(IS_KEY | IS_KEY_BODY);
        forget_buffer(s);
        BODY(s)->cur = 0;
        memcpy(reserve(s, length + 1), text, length + 1);
        BODY(s)->cur = length;
        key_release(key);
        return;
    }
    if (s->flags & IS_COW && share_leave(s))
        return; /* the last one keeps the buffer */
    s->flags &= ~IS_FOREIGN;
    forget_buffer(s);
    if (keep) {
        BODY(s)->cur = 0;
        memcpy(reserve(s, length + 1), text, length + 1);
        BODY(s)->cur = length;
        COUNTED(copied);
    }
}

static inline void plain_for_new_value(struct scalar *s)
{
    if (s->flags & IS_NOT_MUTABLE)
        make_plain(s, 0);
    if (TYPE(s) < TYPE_PV)
        give_body(s);
}

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
        checked(NULL); /* no malloc gives so much, and sizes derived from it could wrap around */
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
