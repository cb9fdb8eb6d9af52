/*
 * How buffers are shared in the layout cow3, without a write to the buffer, so also where it is read-only or not
 * ours. The word `extra` of each sharer's body is
 *
 *   of two sharers      the other's head
 *   of three and more   a counter from an arena, with the low bit set (heads and counters are at even addresses)
 *
 * A sharer that leaves finds the other of a pair by its own word, and a counter by its own word: no walk. With the
 * last leaver of a counter but one the last owner has to be found, to be told that it is alone: so a counter has,
 * besides the number, the exclusive or of its sharers' addresses. Of two, each finds the other with it. Who leaves
 * three does not know the two that stay: their counter becomes a pair when one of them is touched (share_settle).
 */
struct counter {
    size_t sharers;
    uintptr_t all; /* exclusive or of their heads' addresses */
};

#define EXTRA(s) (BODY(s)->extra)
#define IS_COUNTED(s) (EXTRA(s) & 1)

static inline struct counter *share_counter(const struct scalar *s)
{
    return (struct counter *)(EXTRA(s) - 1);
}

/* The other of two. */
static inline struct scalar *share_other(const struct scalar *s)
{
    return (struct scalar *)(IS_COUNTED(s) ? share_counter(s)->all ^ (uintptr_t)s : EXTRA(s));
}

static inline int share_can(const struct scalar *s)
{
    (void)s;
    return 1;
}

static inline void share_join(struct scalar *to, struct scalar *from)
{
    to->text = from->text;
    to->flags |= IS_COW | (from->flags & IS_FOREIGN);
    BODY(to)->len = BODY(from)->len;
    COUNTED(steps);
    if (!(from->flags & IS_COW)) { /* a pair */
        from->flags |= IS_COW;
        EXTRA(from) = (uintptr_t)to;
        EXTRA(to) = (uintptr_t)from;
        return;
    }
    if (!IS_COUNTED(from)) { /* the third */
        struct scalar *other = share_other(from);
        struct counter *counter = arena_take(&arena_counters);
        counter->sharers = 2;
        counter->all = (uintptr_t)from ^ (uintptr_t)other;
        EXTRA(from) = EXTRA(other) = (uintptr_t)counter | 1;
        COUNTED(promoted);
    }
    struct counter *counter = share_counter(from);
    counter->sharers++;
    counter->all ^= (uintptr_t)to;
    EXTRA(to) = EXTRA(from);
}

/* Leaves the sharers. Never the last: who is alone is no sharer. */
static inline int share_leave(struct scalar *s)
{
    COUNTED(steps);
    if (IS_COUNTED(s) && share_counter(s)->sharers > 2) {
        share_counter(s)->sharers--;
        share_counter(s)->all ^= (uintptr_t)s;
    } else {
        struct scalar *other = share_other(s);
        if (IS_COUNTED(s)) {
            arena_give(&arena_counters, share_counter(s));
            COUNTED(demoted);
        }
        other->flags &= ~IS_COW;
        EXTRA(other) = 0;
    }
    s->flags &= ~IS_COW;
    EXTRA(s) = 0;
    return 0;
}

/* A counter of two becomes a pair. */
static inline void share_settle(struct scalar *s)
{
    if (!(s->flags & IS_COW) || !IS_COUNTED(s) || share_counter(s)->sharers > 2)
        return;
    struct scalar *other = share_other(s);
    arena_give(&arena_counters, share_counter(s));
    EXTRA(s) = (uintptr_t)other;
    EXTRA(other) = (uintptr_t)s;
    COUNTED(demoted);
    COUNTED(paired);
}

/* `to` takes the place of `from` among the sharers, with the same text; `from` has no buffer any more. */
static inline void share_replace(struct scalar *to, struct scalar *from)
{
    if (IS_COUNTED(from))
        share_counter(from)->all ^= (uintptr_t)from ^ (uintptr_t)to;
    else
        EXTRA(share_other(from)) = (uintptr_t)to;
    EXTRA(to) = EXTRA(from);
    EXTRA(from) = 0;
}

static inline size_t share_count(const struct scalar *s)
{
    return !(s->flags & IS_COW) ? 1 : IS_COUNTED(s) ? share_counter(s)->sharers : 2;
}
