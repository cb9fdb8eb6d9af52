// Blocks that lead to each other at random, of which few are held: by static variables only. What is lost is known to nobody but
// a leak detector. Its one argument draws them. Waits for its input to end.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void **roots[64];

__attribute__((noinline)) static void make(unsigned seed) {
    srand(seed);
    int count = 500 + rand() % 3000;
    void ***all = malloc(count * sizeof *all);
    size_t *words = malloc(count * sizeof *words);
    for (int i = 0; i < count; i++) {
        words[i] = 2 + rand() % (rand() % 20 == 0 ? 3000 : 30);
        all[i] = calloc(words[i], sizeof(void *));
    }
    for (int i = 0; i < count; i++) {
        for (int references = rand() % 3; references > 0; references--) {
            void **to = all[rand() % count];
            all[i][rand() % words[i]] = to;
        }
    }
    for (int held = rand() % 12; held > 0; held--) roots[rand() % 64] = all[rand() % count];
    for (int i = 0; i < count; i++) all[i] = NULL;
    free(all);
    free(words);
}

// Writes over what the call has left on the stack.
__attribute__((noinline)) static void wipe(void) {
    volatile char room[1 << 16];
    for (size_t i = 0; i < sizeof room; i++) room[i] = 0;
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    make(count > 1 ? (unsigned)atoi(arguments[1]) : 1);
    wipe();
    puts("ready");
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}
