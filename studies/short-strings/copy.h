/*
 * From one scalar to another: copied, shared, taken. A part of scalar.c, which includes it, so that the compiler sees all
 * of a scalar's operations at once, as it does in perl's sv.c.
 */

#include "buffers.h"

/* What is not text. */
static inline void copy_numbers(struct scalar *to, const struct scalar *from)
{
    if (from->flags & HAS_INTEGER) {
        scalar_upgrade(to, TYPE_PVIV);
        BODY(to)->integer = BODY(from)->integer;
    }
    if (from->flags & HAS_NUMBER) {
        scalar_upgrade(to, TYPE_PVNV);
        BODY(to)->number = BODY(from)->number;
    }
    to->flags |= from->flags & (HAS_INTEGER | HAS_NUMBER);
}

/* The buffer of `from` becomes that of `to`, which has a body and no buffer; not of short texts. */
static void take_buffer(struct scalar *to, struct scalar *from)
{
    to->text = from->text;
    BODY(to)->cur = BODY(from)->cur;
    BODY(to)->len = scalar_len(from);
    to->flags |= HAS_TEXT | (from->flags & IS_NOT_MUTABLE);
#ifdef HAS_LINKS
    if (from->flags & IS_COW)
        share_replace(to, from);
#endif
    if (from->flags & IS_KEY_BODY) {
        from->any = from->text = NULL;
        from->flags &= ~TYPE_MASK;
    } else {
        forget_buffer(from);
    }
    from->flags &= ~(IS_NOT_MUTABLE | IS_KEY_BODY);
    COUNTED(stolen);
}

/* perl: pp_subst. Where it is short it is copied: a body cannot be given away. */
void scalar_steal(struct scalar *to, struct scalar *from)
{
    if (to == from)
        return;
    if (!(from->flags & HAS_TEXT) || from->flags & IS_SHORT) {
        scalar_copy(to, from);
    } else {
        plain_for_new_value(to);
        drop_buffer(to);
        to->flags &= ~HAS_VALUE;
        take_buffer(to, from);
        copy_numbers(to, from);
    }
    from->flags &= ~HAS_VALUE;
}

/* `to` gets the key's text, and in cow3 its body where it has no use for one of its own. */
static void copy_key(struct scalar *to, struct scalar *from)
{
    key_of(from)->references++;
    drop_buffer(to);
#ifdef HAS_LINKS
    if (TYPE(to) == TYPE_PV) {
        arena_give(&arena_bodies[TYPE_PV], to->any);
        to->any = &key_of(from)->cur;
        to->flags |= IS_KEY_BODY;
    } else
#endif
        BODY(to)->cur = BODY(from)->cur;
    to->text = from->text;
    to->flags |= IS_KEY | HAS_TEXT;
    COUNTED(keyed);
}

/* Whether the buffer may be taken: `from` is about to be freed, or has a large text that an operator wrote. */
static inline int may_take(const struct scalar *from, size_t cur)
{
    size_t len = BODY(from)->len;
    if (!len || from->references != 1)
        return 0;
#ifndef HAS_LINKS
    if (from->flags & IS_COW)
        return 0;
#endif
    if (from->flags & IS_TEMPORARY)
        return 1;
#ifdef HAS_COW
    return !(from->flags & IS_COW) && cur >= LARGE_BYTES && len - cur < WASTE_MOST;
#else
    (void)cur;
    return 0;
#endif
}

/* Whether the buffer is shared rather than copied. */
static inline int may_share(const struct scalar *to, const struct scalar *from, size_t cur)
{
#ifdef HAS_COW
    size_t len = BODY(from)->len;
#ifndef SHARES_WITH_TARGETS
    if ((from->flags & (IS_TARGET | IS_FOREIGN)) == IS_TARGET)
        return 0;
#endif
    if (cur < LARGE_BYTES && scalar_len(to) > cur)
        return 0; /* it has a buffer for it, and copying is cheaper */
    if (!(from->flags & (IS_COW | IS_FOREIGN)) && (len - cur >= WASTE_MOST || len >= WASTE_FACTOR * cur))
        return 0;
    return share_can(from);
#else
    (void)to, (void)from, (void)cur;
    return 0;
#endif
}

#ifdef HAS_EXTRA
/* A short text to a scalar that has a short text, or no buffer. */
static inline void copy_short(struct scalar *to, const struct scalar *from)
{
    if (!to->text) {
        to->text = BODY(to)->buffer;
        to->flags |= IS_SHORT;
    }
    memcpy(to->text, from->text, SHORT_BYTES);
    BODY(to)->cur = BODY(from)->cur;
    to->flags |= HAS_TEXT;
}
#endif

/* The text of `from`, by the first of these ways that can be; whether `from` has it no more. */
static inline int copy_text(struct scalar *to, struct scalar *from)
{
    size_t cur = BODY(from)->cur;
#ifdef HAS_EXTRA
    if (from->flags & IS_SHORT) {
        if (to->flags & IS_SHORT || !to->text) {
            copy_short(to, from);
            return 0;
        }
    } else
#endif
    if (from->flags & IS_KEY) {
        copy_key(to, from);
        return 0;
    } else if (from->flags & (IS_TEMPORARY | IS_TARGET) && may_take(from, cur)) {
        drop_buffer(to);
        take_buffer(to, from);
        return 1;
    } else if (may_share(to, from, cur)) {
        drop_buffer(to);
        share_join(to, from);
        BODY(to)->cur = cur;
        to->flags |= HAS_TEXT;
        COUNTED(shared);
        return 0;
    }
    memcpy(reserve(to, cur + 1), from->text, cur);
    end_text(to, cur);
    COUNTED(copied);
    return 0;
}

/* perl: sv_setsv. */
void scalar_copy(struct scalar *to, struct scalar *from)
{
    if (to == from)
        return;
    plain_for_new_value(to);
    to->flags &= ~HAS_VALUE;
    int is_taken = from->flags & HAS_TEXT ? copy_text(to, from) : 0;
    if (from->flags & (HAS_INTEGER | HAS_NUMBER))
        copy_numbers(to, from);
    if (is_taken)
        from->flags &= ~HAS_VALUE;
}
