/*
 * Perl-like scalars in one of several layouts, chosen when it is built:
 *
 *   -DLAYOUT_CLASSIC   every text in a buffer of its own from malloc; nothing is shared but hash keys
 *   -DLAYOUT_COW_BYTE  copy on write: the number of sharers is in the last byte of the buffer (perl since 5.20)
 *   -DLAYOUT_SHORT     cow-byte, but a body has one more word, and texts of up to 15 bytes are in the body: the branch
 *                      that the mail measured as p1
 *   -DLAYOUT_COW3      a body has one more word; texts of up to 15 bytes are in the body; buffers are shared without
 *                      writing to them: two sharers point at each other, three and more at a counter
 *   -DLAYOUT_COW3_EAGER   cow3, and buffers are shared with the targets of operators too, as perl does (buffers.h)
 *   -DLAYOUT_COW1      as cow3, but all sharers are one ring (only to show what that costs)
 *
 * A scalar is a head of 24 bytes and a body whose size is its type's. Both come from arenas. The order of a body's
 * fields is not perl's (stash and magic come last here, so that no pointer is before its allocation); the sizes are.
 */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "arena.h"

#if defined(LAYOUT_COW3_EAGER)
#define LAYOUT_COW3 1
#define SHARES_WITH_TARGETS 1
#define LAYOUT_NAME "cow3-eager"
#elif defined(LAYOUT_COW3)
#define LAYOUT_NAME "cow3"
#endif

#if defined(LAYOUT_CLASSIC)
#define LAYOUT_NAME "classic"
#elif defined(LAYOUT_COW_BYTE)
#define LAYOUT_NAME "cow-byte"
#define HAS_COW 1
#elif defined(LAYOUT_SHORT)
#define LAYOUT_NAME "short"
#define HAS_COW 1
#define HAS_EXTRA 1
#elif defined(LAYOUT_COW3)
#define HAS_COW 1
#define HAS_EXTRA 1
#elif defined(LAYOUT_COW1)
#define LAYOUT_NAME "cow1"
#define HAS_COW 1
#define HAS_EXTRA 1
#else
#error "choose a layout: -DLAYOUT_CLASSIC, -DLAYOUT_COW_BYTE, -DLAYOUT_SHORT, -DLAYOUT_COW3 or -DLAYOUT_COW1"
#endif

#if defined(LAYOUT_COW_BYTE) || defined(LAYOUT_SHORT)
#define HAS_COUNT_BYTE 1 /* the number of sharers is in the buffer */
#endif
#if defined(LAYOUT_COW3) || defined(LAYOUT_COW1)
#define HAS_LINKS 1 /* sharers are known by the word `extra` */
#endif

enum type { TYPE_NONE, TYPE_PV, TYPE_PVIV, TYPE_PVNV, TYPE_PVMG, TYPES };

/* Flags of a head; the type is in the low byte. */
enum {
    TYPE_MASK = 0xff,
    HAS_TEXT = 1 << 8,     /* perl: POK */
    HAS_INTEGER = 1 << 9,  /* IOK */
    HAS_NUMBER = 1 << 10,  /* NOK */
    IS_COW = 1 << 11,      /* the buffer may have other users */
    IS_SHORT = 1 << 12,    /* the text is in a body: this one's, or the one it had before it was upgraded */
    IS_KEY = 1 << 13,      /* the buffer is that of a shared hash key */
    IS_KEY_BODY = 1 << 14, /* and so is the body */
    IS_FOREIGN = 1 << 15,  /* the buffer is not the scalars' and not written to: LEN is 0 */
    IS_TEMPORARY = 1 << 16,/* perl: TEMP: what it has may be taken */
    IS_TARGET = 1 << 17,   /* perl: PADTMP: what an operator writes its result to, each time */
    HAS_VALUE = HAS_TEXT | HAS_INTEGER | HAS_NUMBER,
    IS_NOT_MUTABLE = IS_COW | IS_KEY | IS_FOREIGN
};

struct scalar {
    void *any; /* the body */
    uint32_t references;
    uint32_t flags;
    char *text;
};

#define SHORT_BYTES 16 /* with the NUL */

struct body {
    size_t cur; /* length of the text. Of a body that is only a buffer any more: its type */
#ifdef HAS_EXTRA
    union {
        struct {
            size_t len;      /* bytes of the buffer; 0: not ours */
            uintptr_t extra; /* who else has the buffer: share_pair.h, share_ring.h */
        };
        char buffer[SHORT_BYTES];
    };
#else
    size_t len;
#endif
    int64_t integer; /* from PVIV on */
    double number;   /* from PVNV on */
    void *stash;     /* from PVMG on */
    void *magic;
};

#define BODY(s) ((struct body *)(s)->any)
#define TYPE(s) ((s)->flags & TYPE_MASK)

/* What was done, counted in builds with -DCOUNT (the others have no instruction for it). */
struct counts {
    unsigned long long buffers;       /* buffers taken from malloc */
    unsigned long long buffers_live;  /* of them, not yet freed */
    unsigned long long resized;       /* buffers resized */
    unsigned long long shared;        /* copies that share the buffer, of scalars (keys are not among them) */
    unsigned long long keyed;         /* copies that use the same hash key */
    unsigned long long copied;        /* copies of a text, byte by byte */
    unsigned long long stolen;        /* copies that took the buffer */
    unsigned long long no_byte;       /* could have shared, but there is no spare byte */
    unsigned long long count_full;    /* or the count in it is at its most */
    unsigned long long promoted;      /* pairs that became counters */
    unsigned long long demoted;       /* counters that were given back: to a pair, or one owner */
    unsigned long long paired;        /* of them, to a pair */
    unsigned long long steps;         /* sharers looked at to share or leave */
};
extern struct counts counts;
#ifdef COUNT
#define COUNTED(what) (counts.what++)
#define UNCOUNTED(what) (counts.what--)
#else
#define COUNTED(what) ((void)0)
#define UNCOUNTED(what) ((void)0)
#endif

/* The buffer's bytes; 0 where it is not ours. */
static inline size_t scalar_len(const struct scalar *s)
{
#ifdef HAS_EXTRA
    if (s->flags & (IS_SHORT | IS_KEY_BODY))
        return s->flags & IS_SHORT ? SHORT_BYTES : 0;
#endif
    return BODY(s)->len;
}

static inline size_t scalar_length(const struct scalar *s)
{
    return s->flags & HAS_TEXT ? BODY(s)->cur : 0;
}

static inline const char *scalar_text(const struct scalar *s)
{
    return s->flags & HAS_TEXT ? s->text : "";
}

#ifdef HAS_EXTRA
/* The body in whose buffer a short text is. */
static inline struct body *scalar_short_body(const struct scalar *s)
{
    return (struct body *)(s->text - offsetof(struct body, buffer));
}
#endif

/* Where heads, bodies and counters of sharers come from. */
extern struct arena arena_heads, arena_bodies[TYPES], arena_counters;

#endif
