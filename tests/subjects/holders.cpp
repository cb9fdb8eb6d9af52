// A server whose live and leaked blocks are known: an unbounded cache, leaked sessions, and small
// objects that pin the pages of freed large ones. Prints one JSON line with the blocks and bytes
// (malloc_usable_size) of each group; on each `m` that it reads it grows a list, leaks more lists
// and prints the new figures.
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace server {

struct Session {
    virtual ~Session() {}
    Session *next = nullptr;
    char state[100] = {};
};

struct Entry {
    virtual ~Entry() {}
    char *body = nullptr;
};

struct Pin {
    virtual ~Pin() {}
    long number = 0;
};

struct Held {
    virtual ~Held() {}
    char state[200] = {};
};

}  // namespace server

static server::Entry **g_cache;
static server::Pin **g_pins;
static server::Session *g_sessions;
static pthread_barrier_t g_started;
static thread_local server::Held *t_held[16];

// Fills a table with objects. `main` places tables where a search for roots may miss them: its own
// mappings (one read-only, one that a child does not inherit, one that a child inherits as zeros),
// thread-local storage, and main's stack.
static void hold(server::Held **table, size_t count) {
    for (size_t i = 0; i < count; i++) table[i] = new server::Held;
}

static void print_group(const char *name, size_t blocks, size_t bytes) {
    printf("\"%s\": [%zu, %zu], ", name, blocks, bytes);
}

// Only this thread's stack refers to these objects.
static void *worker(void *) {
    server::Held *held[64];
    for (auto &one : held) one = new server::Held;
    pthread_barrier_wait(&g_started);
    for (;;) pause();
    return held[0];
}

// Leaks lists of sessions: nothing refers to a head, and each head leads to the rest of its list.
__attribute__((noinline)) static void forget(size_t lists, size_t length) {
    size_t bytes = 0;
    for (size_t list = 0; list < lists; list++) {
        server::Session *head = nullptr;
        for (size_t i = 0; i < length; i++) {
            auto *one = new server::Session;
            one->next = head;
            head = one;
            bytes += malloc_usable_size(one);
        }
    }
    print_group("lost", lists * length, bytes);
    print_group("heads", lists, bytes / length);
}

__attribute__((noinline)) static void cache(size_t entries) {
    g_cache = (server::Entry **)malloc(entries * sizeof *g_cache);
    size_t bytes = malloc_usable_size(g_cache);
    for (size_t i = 0; i < entries; i++) {
        g_cache[i] = new server::Entry;
        g_cache[i]->body = (char *)malloc(2000);
        memset(g_cache[i]->body, 1, 2000);
        bytes += malloc_usable_size(g_cache[i]) + malloc_usable_size(g_cache[i]->body);
    }
    print_group("cache", 2 * entries + 1, bytes);
}

// Leaves one small object on about every second page, among freed large ones.
__attribute__((noinline)) static void pins(size_t count) {
    char **large = (char **)malloc(count * 4 * sizeof *large);
    g_pins = (server::Pin **)malloc(count * sizeof *g_pins);
    size_t bytes = malloc_usable_size(g_pins);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < 4; j++) memset(large[4 * i + j] = (char *)malloc(2000), 1, 2000);
        g_pins[i] = new server::Pin;
        bytes += malloc_usable_size(g_pins[i]);
    }
    for (size_t i = 0; i < 4 * count; i++) free(large[i]);
    free(large);
    print_group("pins", count + 1, bytes);
}

// Prepends sessions to a reachable list.
__attribute__((noinline)) static void more(size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        auto *one = new server::Session;
        one->next = g_sessions;
        g_sessions = one;
        bytes += malloc_usable_size(one);
    }
    print_group("more", count, bytes);
}

// Overwrites pointers that calls have left on the stack.
__attribute__((noinline)) static void wipe() {
    volatile char room[1 << 16];
    for (size_t i = 0; i < sizeof room; i++) room[i] = 0;
}

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    pthread_barrier_init(&g_started, nullptr, 2);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, worker, nullptr)) return 1;
    pthread_setname_np(thread, "worker");
    pthread_barrier_wait(&g_started);
    printf("{");
    cache(5000);
    forget(300, 10);
    server::Held *of_main[32];
    hold(of_main, 32);
    hold(t_held, 16);
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    void *open = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, kind, -1, 0);
    void *sealed = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, kind, -1, 0);
    void *shared = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *kept = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, kind, -1, 0);
    void *wiped = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, kind, -1, 0);
    for (void *one : {open, sealed, shared, kept, wiped})
        if (one == MAP_FAILED) return 1;
    if (madvise(kept, 1 << 16, MADV_DONTFORK) || madvise(wiped, 1 << 16, MADV_WIPEONFORK)) return 1;
    hold((server::Held **)kept, 100);
    hold((server::Held **)wiped, 100);
    hold((server::Held **)open, 100);
    hold((server::Held **)sealed, 100);
    hold((server::Held **)shared, 100);
    mprotect(sealed, 1 << 16, PROT_READ);
    print_group("open", 100, 0);
    pins(4000);
    wipe();
    puts("\"ready\": true}");
    char byte;
    while (read(0, &byte, 1) > 0) {
        if (byte != 'm') continue;
        printf("{");
        more(500);
        forget(20, 10);
        wipe();
        puts("\"ready\": true}");
    }
    return of_main[5] == nullptr;
}
