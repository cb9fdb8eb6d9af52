// steps: takes, fills and gives back blocks with malloc and free as told on standard input, and tells memory after each.
//
// One line: `+BYTES` takes a block and fills it, `-N` gives back the N-th that was taken (from 0). Prints one JSON
// object: the state that the steps start from (where the top chunk begins within its page, its size, which of its pages
// are resident, 1 or 0 each) and `steps`: [virtual_bytes, anonymous_bytes] before the first and after each step.
//
// The state is read at the header of the top chunk, which follows the last block taken from it (malloc/malloc.c,
// "malloc_chunk details"). A block of 1,500 bytes that is kept stands before it, so that nothing merges backwards.
#include "ways.h"

static const size_t most_steps = 1000;
static const size_t page_bytes = 4096;

// The header word of the top chunk, found below a block that was just cut from it.
static const volatile uint64_t *top_size_word() {
    void *fence = malloc(1500);
    unsigned char *end = static_cast<unsigned char *>(fence) + malloc_usable_size(fence);
    return reinterpret_cast<const volatile uint64_t *>(end);
}

static void tell_state(const volatile uint64_t *word) {
    uintptr_t top = reinterpret_cast<uintptr_t>(word) - 8;
    uintptr_t bytes = *word & ~static_cast<uint64_t>(7);
    if (top + bytes != reinterpret_cast<uintptr_t>(sbrk(0))) {
        fail("the top chunk was not found: this is not glibc's malloc, or its layout is another one", "");
    }
    say("{\"top_offset_bytes\":%zu,\"top_bytes\":%zu,\"top_pages\":\"", static_cast<size_t>(top % page_bytes),
        static_cast<size_t>(bytes));
    int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    for (uintptr_t page = top / page_bytes; page < (top + bytes) / page_bytes; page++) {
        uint64_t entry = 0;
        if (file < 0 || pread(file, &entry, sizeof entry, static_cast<off_t>(page * sizeof entry)) != sizeof entry) {
            fail("no /proc/self/pagemap", "");
        }
        say("%d", static_cast<int>(entry >> 63));
    }
    close(file);
    say("\",\"steps\":[");
}

int main() {
    static char text[65536];
    static unsigned char *block[most_steps];
    static Memory after[most_steps + 1];
    size_t length = 0;
    for (ssize_t got; (got = read(STDIN_FILENO, text + length, sizeof text - 1 - length)) > 0;) {
        length += static_cast<size_t>(got);
    }
    get_ready();
    apply_mallopt();
    memset(block, 0xFF, sizeof block); // touched before the first figure
    memset(after, 0xFF, sizeof after);
    const volatile uint64_t *word = top_size_word();
    tell_state(word);
    size_t blocks = 0, steps = 0;
    after[0] = memory_now();
    char *at = text;
    while ((*at == '+' || *at == '-') && steps < most_steps) {
        bool takes = *at == '+';
        size_t number = strtoul(at + 1, &at, 10);
        if (takes) {
            block[blocks] = static_cast<unsigned char *>(malloc(number));
            if (block[blocks] == nullptr) {
                fail("no memory", "");
            }
            memset(block[blocks], 0xA5, number);
            blocks++;
        } else if (number < blocks) {
            free(block[number]);
        }
        after[++steps] = memory_now();
        at += *at == ' ';
    }
    for (size_t i = 0; i <= steps; i++) {
        say("%s[%ld,%ld]", i == 0 ? "" : ",", after[i].virtual_bytes, after[i].anonymous_bytes);
    }
    say("]}\n");
    say(nullptr);
    return 0;
}
