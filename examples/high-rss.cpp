// A process whose RSS is high for four reasons: it freed half of its memory, which malloc keeps; orders pin pages
// that are free otherwise; a cache has no bound; sessions leak. A subject for `explain`, `holders` and `reclaim`:
//
//     c++ -O1 -o /tmp/high-rss examples/high-rss.cpp
//     /tmp/high-rss 2048 &        # MiB; 256 if left out; it ends by itself after an hour
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace shop {

struct Session {
    virtual ~Session() {}
    Session *next = nullptr;
    char state[232] = {};
};

struct Page {
    virtual ~Page() {}
    char *body = nullptr;
};

struct Order {
    virtual ~Order() {}
    long number = 0;
};

}  // namespace shop

static shop::Page **g_cache;
static shop::Order **g_orders;
static shop::Session *volatile g_newest;

static char *filled(size_t bytes) {
    char *block = (char *)malloc(bytes);
    if (!block) exit(1);
    return (char *)memset(block, 1, bytes);
}

// Blocks that are freed later, below everything that stays.
static char **burst(size_t count, size_t bytes) {
    char **blocks = (char **)malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++) blocks[i] = filled(bytes);
    return blocks;
}

static void fill_cache(size_t count) {
    g_cache = (shop::Page **)malloc(count * sizeof *g_cache);
    for (size_t i = 0; i < count; i++) {
        g_cache[i] = new shop::Page;
        g_cache[i]->body = filled(8000);
    }
}

// Lists of ten sessions; nothing refers to their heads.
__attribute__((noinline)) static void leak(size_t lists) {
    for (size_t list = 0; list < lists; list++) {
        shop::Session *head = nullptr;
        for (int i = 0; i < 10; i++) {
            auto *one = new shop::Session;
            one->next = head;
            g_newest = head = one;
        }
    }
    g_newest = nullptr;
}

// An order of 16 bytes on each page; what lies between them is freed later.
static char **place_orders(size_t count) {
    char **between = (char **)malloc(count * sizeof *between);
    g_orders = (shop::Order **)malloc(count * sizeof *g_orders);
    for (size_t i = 0; i < count; i++) {
        g_orders[i] = new shop::Order;
        between[i] = filled(4040);
    }
    return between;
}

static void free_all(char **blocks, size_t count) {
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    free(blocks);
}

// Overwrites what calls have left on the stack.
__attribute__((noinline)) static void wipe() {
    volatile char room[1 << 16];
    for (size_t i = 0; i < sizeof room; i++) room[i] = 0;
}

int main(int argc, char **argv) {
    const size_t total = (argc > 1 ? strtoul(argv[1], nullptr, 10) : 256) << 20;
    const size_t buffers = total / 2 / 60016, orders = total / 5 / 4080;
    char **freed = burst(buffers, 60000);
    fill_cache(total / 5 / 8048);
    leak(total / 10 / 2560);
    char **between = place_orders(orders);
    free_all(freed, buffers);
    free_all(between, orders);
    wipe();
    printf("high-rss: process %d is ready\n", getpid());
    fflush(stdout);
    sleep(3600);
}
