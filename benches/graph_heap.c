// A heap of blocks that lead to each other: graph_heap BLOCKS [graph|list|table]. Prints a line and waits.
//
// graph: each has 100 to 579 bytes and leads to one of the thousand before it, half of them to any other too; an array leads to all but one
//        in 33, which are lost where no other leads to them. 2.5 references a block.
// list:  each has 352 bytes and leads to the one before it.
// table: a hash table of nodes of 48 bytes, each with a string of 640.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
    struct node *next;
    char *name;
    long value[4];
};

void **g_all;
struct node *g_list;
struct node **g_table;

static unsigned long drawn = 1;

static unsigned long draw(unsigned long below) {
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return (drawn >> 11) % below;
}

static void *take(size_t bytes) {
    void *block = malloc(bytes);
    if (!block) exit(1);
    return memset(block, 'a', bytes);
}

static void graph(long blocks) {
    g_all = take((size_t)blocks * sizeof *g_all);
    for (long i = 0; i < blocks; i++) {
        size_t words = (100 + draw(480)) / sizeof(void *);
        void **block = take(words * sizeof *block);
        for (size_t k = 0; k < words; k++) block[k] = (void *)k;
        block[1] = i ? g_all[i - 1 - (long)draw(i < 1000 ? (unsigned long)i : 1000)] : NULL;
        block[2] = i && draw(2) ? g_all[draw((unsigned long)i)] : NULL;
        g_all[i] = i && draw(33) == 0 ? g_all[0] : block;
    }
}

static void list(long blocks) {
    for (long i = 0; i < blocks; i++) {
        struct node *node = take(352);
        node->next = g_list;
        node->name = NULL;
        g_list = node;
    }
}

static void table(long blocks) {
    long nodes = blocks / 2;
    g_table = calloc((size_t)nodes, sizeof *g_table);
    if (!g_table) exit(1);
    for (long i = 0; i < nodes; i++) {
        struct node *node = take(sizeof *node);
        struct node **slot = &g_table[((unsigned long)i * 0x9E3779B97F4A7C15ul) % (unsigned long)nodes];
        node->name = take(640);
        node->next = *slot;
        *slot = node;
    }
}

int main(int count, char **arguments) {
    long blocks = count > 1 ? atol(arguments[1]) : 1000000;
    const char *kind = count > 2 ? arguments[2] : "graph";
    (!strcmp(kind, "list") ? list : !strcmp(kind, "table") ? table : graph)(blocks);
    puts("ready");
    fflush(stdout);
    return getchar() == 'x';
}
