// A heap of blocks that lead to each other: graph_heap BLOCKS. Each has 100 to 579 bytes and leads to one of the thousand before it, half of
// them to any other too; a table leads to all but one in 33, which are lost where no other leads to them. Prints a line and waits.
#include <stdio.h>
#include <stdlib.h>

void **g_all;

static unsigned long drawn = 1;

static unsigned long draw(unsigned long below) {
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return (drawn >> 11) % below;
}

int main(int count, char **arguments) {
    long blocks = count > 1 ? atol(arguments[1]) : 1000000;
    g_all = malloc((size_t)blocks * sizeof *g_all);
    if (!g_all) return 1;
    for (long i = 0; i < blocks; i++) {
        size_t words = (100 + draw(480)) / sizeof(void *);
        void **block = malloc(words * sizeof *block);
        if (!block) return 1;
        for (size_t k = 0; k < words; k++) block[k] = (void *)k;
        block[1] = i ? g_all[i - 1 - (long)draw(i < 1000 ? (unsigned long)i : 1000)] : NULL;
        block[2] = i && draw(2) ? g_all[draw((unsigned long)i)] : NULL;
        g_all[i] = i && draw(33) == 0 ? g_all[0] : block;
    }
    puts("ready");
    fflush(stdout);
    return getchar() == 'x';
}
