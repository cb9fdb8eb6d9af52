/*
 * Arenas: pieces of one size, cut from blocks of 4,080 bytes as perl does (sv_inline.h, PERL_ARENA_SIZE) and
 * kept on a free list when they are given back. A block is never given back before arena_end.
 */
#ifndef ARENA_H
#define ARENA_H

#include <stddef.h>

#define ARENA_BLOCK_BYTES 4080

struct arena {
    size_t piece_bytes; /* of one piece; a multiple of 8 */
    void *free;         /* the first free piece; its first word is the next one */
    void *blocks;       /* the last block; its first word is the one before */
    size_t live;        /* pieces in use */
    size_t pieces;      /* pieces of all blocks */
};

#define ARENA(bytes) { (bytes), NULL, NULL, 0, 0 }

/* Cuts another block into pieces. */
void arena_more(struct arena *arena);

/* Whether the free list has every piece that is not live, and nothing twice. */
int arena_is_sound(const struct arena *arena);

/* Gives all blocks back. */
void arena_end(struct arena *arena);

/* Under the address sanitizer a free piece may not be touched, but for its first word. */
#if defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer)
#define ARENA_IS_CHECKED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) /* gcc */
#define ARENA_IS_CHECKED 1
#endif
#if defined(ARENA_IS_CHECKED)
#include <sanitizer/asan_interface.h>
#define ARENA_HIDE(arena, piece) ASAN_POISON_MEMORY_REGION((char *)(piece) + 8, (arena)->piece_bytes - 8)
#define ARENA_SHOW(arena, piece) ASAN_UNPOISON_MEMORY_REGION((char *)(piece) + 8, (arena)->piece_bytes - 8)
#else
#define ARENA_HIDE(arena, piece) ((void)0)
#define ARENA_SHOW(arena, piece) ((void)0)
#endif

/* A piece; what is in it is whatever was. */
static inline void *arena_take(struct arena *arena)
{
    if (!arena->free)
        arena_more(arena);
    void *piece = arena->free;
    arena->free = *(void **)piece;
    arena->live++;
    ARENA_SHOW(arena, piece);
    return piece;
}

/* Takes that piece back. */
static inline void arena_give(struct arena *arena, void *piece)
{
    *(void **)piece = arena->free;
    arena->free = piece;
    arena->live--;
    ARENA_HIDE(arena, piece);
}

#endif
