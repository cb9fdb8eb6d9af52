// Blocks that refer to each other at random; only static variables refer to a few of them. Only a
// leak detector knows the unreachable ones. The argument is the seed. Waits for its input to end.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void **roots[64];
static unsigned long drawn;

// The same numbers with every C library: xorshift64.
static int draw(void) {
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return (int)(drawn >> 33);
}

__attribute__((noinline)) static void make(unsigned seed) {
    drawn = 0x9e3779b97f4a7c15 * (seed + 1ul);
    int count = 500 + draw() % 3000;
    void ***all = malloc(count * sizeof *all);
    size_t *words = malloc(count * sizeof *words);
    for (int i = 0; i < count; i++) {
        // malloc maps some of them.
        words[i] = draw() % 200 == 0 ? 20000 : 2 + draw() % (draw() % 20 == 0 ? 3000 : 30);
        all[i] = calloc(words[i], sizeof(void *));
    }
    for (int i = 0; i < count; i++) {
        for (int references = draw() % 3; references > 0; references--) {
            void **to = all[draw() % count];
            all[i][draw() % words[i]] = to;
        }
    }
    for (int held = draw() % 12; held > 0; held--) roots[draw() % 64] = all[draw() % count];
    for (int i = 0; i < count; i++) all[i] = NULL;
    free(all);
    free(words);
}

// Overwrites pointers that calls left on the stack and in caller-saved registers: both are roots,
// also for memcheck.
__attribute__((noinline)) static void wipe(void) {
    volatile char room[1 << 16];
    for (size_t i = 0; i < sizeof room; i++) room[i] = 0;
    __asm__ volatile("xor %%ecx, %%ecx; xor %%edx, %%edx; xor %%esi, %%esi; xor %%edi, %%edi;"
                     "xor %%r8d, %%r8d; xor %%r9d, %%r9d; xor %%r10d, %%r10d; xor %%r11d, %%r11d" ::
                         : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc");
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    make(count > 1 ? (unsigned)atoi(arguments[1]) : 1);
    wipe();
    puts("ready");
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    wipe();
    return 0;
}
