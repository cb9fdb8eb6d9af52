/* How buffers are shared: not at all (layout classic). */
static inline int share_can(const struct scalar *s)
{
    (void)s;
    return 0;
}

static inline void share_join(struct scalar *to, struct scalar *from)
{
    (void)to, (void)from;
}

static inline int share_leave(struct scalar *s)
{
    (void)s;
    return 1;
}

static inline size_t share_count(const struct scalar *s)
{
    (void)s;
    return 1;
}
