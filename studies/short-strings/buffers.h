/*
 * Heads, bodies and buffers: how a scalar gets a body, how a buffer is taken, grown, let go and made its own. Included by
 * scalar.c alone, and by its part copy.h, so that the compiler sees all of a scalar's operations at once, as it does in
 * perl's sv.c.
 */
#ifndef BUFFERS_H
#define BUFFERS_H

#include "checked.h"
#include "key.h"
#include "layout.h"

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
#define MIN_GROWTH 10    /* bytes, in sv_grow */

/*
 * Whether a buffer is shared with the target of an operator. perl does. But the target lets go of it as soon as its
 * operator is run again, and takes a new one: that is the one malloc that a copy costs, and the sharing besides. cow3
 * copies, and takes what is large.
 */
#if defined(HAS_COUNT_BYTE) || defined(LAYOUT_COW1)
#define SHARES_WITH_TARGETS 1
#endif

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
    return checked(malloc(bytes), "a buffer");
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
        if (need < MIN_GROWTH)
            need = MIN_GROWTH;
        return set_buffer(s, buffer_new(need), need);
    }
    size_t least = BODY(s)->cur + (BODY(s)->cur >> 2) + MIN_GROWTH;
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
    return set_buffer(s, checked(realloc(s->text, need), "a buffer"), need);
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

#endif
