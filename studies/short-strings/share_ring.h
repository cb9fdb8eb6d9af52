/*
 * How buffers are shared in the layout cow1: the word `extra` of each sharer's body is the next sharer's head, of the
 * last one the first's. Who leaves has to walk the ring to find who points at it, so that N sharers leave in a time
 * that grows with the square of N. Only to show that; cow3 is what is compared.
 */
#define EXTRA(s) (BODY(s)->extra)

static inline struct scalar *ring_next(const struct scalar *s)
{
    return (struct scalar *)EXTRA(s);
}

static inline int share_can(const struct scalar *s)
{
    (void)s;
    return 1;
}

static inline void share_join(struct scalar *to, struct scalar *from)
{
    COUNTED(steps);
    to->text = from->text;
    to->flags |= IS_COW | (from->flags & IS_FOREIGN);
    BODY(to)->len = BODY(from)->len;
    EXTRA(to) = from->flags & IS_COW ? EXTRA(from) : (uintptr_t)from;
    EXTRA(from) = (uintptr_t)to;
    from->flags |= IS_COW;
}

/* The sharer before this one. */
static inline struct scalar *ring_before(const struct scalar *s)
{
    struct scalar *before = ring_next(s);
    COUNTED(steps);
    while (ring_next(before) != s) {
        before = ring_next(before);
        COUNTED(steps);
    }
    return before;
}

static inline int share_leave(struct scalar *s)
{
    struct scalar *before = ring_before(s);
    EXTRA(before) = EXTRA(s);
    if (ring_next(before) == before) {
        before->flags &= ~IS_COW;
        EXTRA(before) = 0;
    }
    s->flags &= ~IS_COW;
    EXTRA(s) = 0;
    return 0;
}

static inline void share_settle(struct scalar *s)
{
    (void)s;
}

static inline void share_replace(struct scalar *to, struct scalar *from)
{
    EXTRA(ring_before(from)) = (uintptr_t)to;
    EXTRA(to) = EXTRA(from);
    EXTRA(from) = 0;
}

static inline size_t share_count(const struct scalar *s)
{
    if (!(s->flags & IS_COW))
        return 1;
    size_t count = 1;
    for (const struct scalar *other = ring_next(s); other != s; other = ring_next(other))
        count++;
    return count;
}
