// A server with a leak, a cache without a bound, and small objects that keep the pages of large ones that are gone.
//
//     server LISTS ENTRIES PINS
//
// Forgets LISTS lists of ten sessions, keeps ENTRIES entries of 2 KiB in its cache, and PINS small objects among four times as many
// blocks of 2 KiB that it frees. Then says in one line of JSON what malloc says of each group (`leaked`, `cache`, `pins`, each with
// `blocks` and `bytes`), and does what it reads: `trim` (malloc_trim), `more` (forgets as many lists again, and keeps as many
// sessions in a list that is held), `free` (frees the small objects, then malloc_trim); it answers each with a line. Ends with its input.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

}  // namespace server

static server::Entry **g_cache;
static server::Pin **g_pins;
static server::Session *g_sessions;

struct Sum {
    size_t blocks = 0, bytes = 0;
    void add(void *block) {
        blocks++;
        bytes += malloc_usable_size(block);
    }
};

__attribute__((noinline)) static Sum forget(size_t lists) {
    Sum sum;
    for (size_t list = 0; list < lists; list++) {
        server::Session *head = nullptr;
        for (int i = 0; i < 10; i++) {
            auto *one = new server::Session;
            one->next = head;
            head = one;
            sum.add(one);
        }
    }
    return sum;
}

__attribute__((noinline)) static Sum keep(size_t sessions) {
    Sum sum;
    for (size_t i = 0; i < sessions; i++) {
        auto *one = new server::Session;
        one->next = g_sessions;
        g_sessions = one;
        sum.add(one);
    }
    return sum;
}

__attribute__((noinline)) static Sum cache(size_t entries) {
    Sum sum;
    g_cache = (server::Entry **)calloc(entries, sizeof *g_cache);
    sum.add(g_cache);
    for (size_t i = 0; i < entries; i++) {
        g_cache[i] = new server::Entry;
        g_cache[i]->body = (char *)malloc(2000);
        memset(g_cache[i]->body, 1, 2000);
        sum.add(g_cache[i]);
        sum.add(g_cache[i]->body);
    }
    return sum;
}

__attribute__((noinline)) static Sum pin(size_t count) {
    Sum sum;
    char **large = (char **)malloc(4 * count * sizeof *large);
    g_pins = (server::Pin **)malloc(count * sizeof *g_pins);
    sum.add(g_pins);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < 4; j++) memset(large[4 * i + j] = (char *)malloc(2000), 1, 2000);
        g_pins[i] = new server::Pin;
        sum.add(g_pins[i]);
    }
    for (size_t i = 0; i < 4 * count; i++) free(large[i]);
    free(large);
    return sum;
}

// Writes over what calls have left on the stack.
__attribute__((noinline)) static void wipe() {
    volatile char room[1 << 16];
    for (size_t i = 0; i < sizeof room; i++) room[i] = 0;
}

static void say(const char *name, Sum sum) {
    printf("\"%s\": {\"blocks\": %zu, \"bytes\": %zu}, ", name, sum.blocks, sum.bytes);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    // A buffer of stdio's, not written to yet, would hold what its memory was used for before.
    setvbuf(stdin, nullptr, _IONBF, 0);
    setvbuf(stdout, nullptr, _IONBF, 0);
    size_t lists = strtoul(arguments[1], nullptr, 10);
    size_t pins = strtoul(arguments[3], nullptr, 10);
    printf("{");
    say("leaked", forget(lists));
    say("cache", cache(strtoul(arguments[2], nullptr, 10)));
    say("pins", pin(pins));
    wipe();
    puts("\"ready\": true}");
    static char line[64];
    while (fgets(line, sizeof line, stdin)) {
        printf("{");
        if (!strcmp(line, "more\n")) {
            say("leaked", forget(lists));
            say("kept", keep(lists * 10));
        } else if (!strcmp(line, "free\n")) {
            for (size_t i = 0; i < pins; i++) delete g_pins[i];
            free(g_pins);
            g_pins = nullptr;
        }
        malloc_trim(0);
        wipe();
        puts("\"ready\": true}");
    }
    return 0;
}
