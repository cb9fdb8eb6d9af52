/*
 * How buffers are shared in the layout cow-byte: the last byte of the buffer is the number of sharers less one
 * (perl: CowREFCNT, sv.h). Where the text with its NUL fills the buffer there is no such byte, and after 256
 * sharers it is full: then the text is copied. The buffer is written to each time.
 */
#define SHARE_MOST 255

static inline unsigned char *share_byte(const struct scalar *s)
{
    return (unsigned char *)s->text + BODY(s)->len - 1;
}

/* Whether one more can share this one's buffer. */
static inline int share_can(const struct scalar *s)
{
    if (!BODY(s)->len)
        return 0; /* foreign: nowhere to write */
    if (s->flags & IS_COW) {
        if (*share_byte(s) != SHARE_MOST)
            return 1;
        COUNTED(count_full);
        return 0;
    }
    if (BODY(s)->cur + 1 < BODY(s)->len)
        return 1;
    COUNTED(no_byte);
    return 0;
}

/* `to`, which has no buffer, shares that of `from`. */
static inline void share_join(struct scalar *to, struct scalar *from)
{
    if (!(from->flags & IS_COW)) {
        from->flags |= IS_COW;
        *share_byte(from) = 0;
    }
    ++*share_byte(from);
    to->text = from->text;
    to->flags |= IS_COW;
    BODY(to)->len = BODY(from)->len;
}

/* Leaves the sharers; whether it was the last, who keeps the buffer. */
static inline int share_leave(struct scalar *s)
{
    s->flags &= ~IS_COW;
    if (!*share_byte(s))
        return 1;
    --*share_byte(s);
    return 0;
}

static inline size_t share_count(const struct scalar *s)
{
    return s->flags & IS_COW ? 1 + (size_t)*share_byte(s) : 1;
}
