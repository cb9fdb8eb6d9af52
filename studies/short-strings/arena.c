/* Arenas: see arena.h. */
#include "arena.h"

#include <stdio.h>
#include <stdlib.h>

void arena_more(struct arena *arena)
{
    size_t bytes = ARENA_BLOCK_BYTES / arena->piece_bytes * arena->piece_bytes;
    char *block = malloc(bytes);
    if (!block) {
        fputs("short-strings: no memory for an arena\n", stderr);
        exit(3);
    }
    /* The first piece of a block is not handed out: it holds the way to the block before (perl's heads do so too). */
    *(void **)block = arena->blocks;
    arena->blocks = block;
    for (char *piece = block + bytes - arena->piece_bytes; piece > block; piece -= arena->piece_bytes) {
        *(void **)piece = arena->free;
        arena->free = piece;
        arena->pieces++;
        ARENA_HIDE(arena, piece);
    }
}

int arena_is_sound(const struct arena *arena)
{
    size_t free_pieces = 0;
    for (void *piece = arena->free; piece; piece = *(void **)piece)
        if (++free_pieces > arena->pieces)
            return 0; /* a circle */
    return free_pieces + arena->live == arena->pieces;
}

void arena_end(struct arena *arena)
{
    while (arena->blocks) {
        void *block = arena->blocks;
        arena->blocks = *(void **)block;
        free(block);
    }
    arena->free = NULL;
    arena->live = arena->pieces = 0;
}
