// The ways in which the study takes memory and gives it back: malloc/free, new/delete, std::vector, and mmap/munmap.
// What stands behind malloc and operator new is the environment's choice (preloaded libraries, tunables, mallopt).
#ifndef FREED_HEAP_WAYS_H
#define FREED_HEAP_WAYS_H

#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>

#include <vector>

#include "memory.h"

enum class Way { malloc_free, new_delete, vector, mmap_munmap };

// A path is that of an allocator's library, which `--axis heap=PATH` preloads: malloc's way.
inline Way way_named(const char *name) {
    if (strcmp(name, "malloc") == 0 || strchr(name, '/') != nullptr) {
        return Way::malloc_free;
    }
    if (strcmp(name, "new") == 0) {
        return Way::new_delete;
    }
    if (strcmp(name, "vector") == 0) {
        return Way::vector;
    }
    if (strcmp(name, "mmap") == 0) {
        return Way::mmap_munmap;
    }
    fail("no such way of taking memory: ", name);
}

// A block, and how it was had. The vector itself (three pointers) stands in here, so only its buffer is in the heap.
struct Block {
    Way way;
    size_t bytes = 0;
    unsigned char *start = nullptr;
    std::vector<unsigned char> vector;
};

inline void take(Block &block, Way way, size_t bytes) {
    block.way = way;
    block.bytes = bytes;
    switch (way) {
    case Way::malloc_free:
        block.start = static_cast<unsigned char *>(malloc(bytes));
        break;
    case Way::new_delete:
        block.start = new unsigned char[bytes];
        break;
    case Way::vector: // value-initialised: this one is written to at once
        block.vector = std::vector<unsigned char>(bytes);
        block.start = block.vector.data();
        break;
    case Way::mmap_munmap: {
        void *got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        block.start = got == MAP_FAILED ? nullptr : static_cast<unsigned char *>(got);
        break;
    }
    }
    if (block.start == nullptr) {
        fail("no memory", "");
    }
    asm volatile("" : : "r"(block.start) : "memory"); // the compiler may not leave the pair out
}

// Every byte is written to, with a value that is not zero: pages of zeros stand on a ledger row of their own
// (kernel.zero), whoever holds them. The author's memset wrote zeros, which makes no difference to malloc.
inline void fill(Block &block) {
    memset(block.start, 0xA5, block.bytes);
    asm volatile("" : : "r"(block.start) : "memory");
}

inline void give(Block &block) {
    switch (block.way) {
    case Way::malloc_free:
        free(block.start);
        break;
    case Way::new_delete:
        delete[] block.start;
        break;
    case Way::vector:
        std::vector<unsigned char>().swap(block.vector);
        break;
    case Way::mmap_munmap:
        munmap(block.start, block.bytes);
        break;
    }
    block.start = nullptr;
}

// FREED_MALLOPT="mmap_threshold=16384,top_pad=0": what mallopt returned for all of them together (1 where each was
// accepted, 0 where one was not), -1 where nothing was asked.
inline int apply_mallopt() {
    const char *text = getenv("FREED_MALLOPT");
    int all = -1;
    while (text != nullptr && *text != '\0') {
        const char *value = strchr(text, '=');
        if (value == nullptr) {
            fail("FREED_MALLOPT is NAME=VALUE,...: ", text);
        }
        size_t length = static_cast<size_t>(value - text);
        auto is = [&](const char *name) { return strlen(name) == length && strncmp(text, name, length) == 0; };
        int parameter = is("mmap_threshold")   ? M_MMAP_THRESHOLD
                        : is("trim_threshold") ? M_TRIM_THRESHOLD
                        : is("top_pad")        ? M_TOP_PAD
                                               : 0;
        if (parameter == 0) {
            fail("not a parameter that this study sets: ", text);
        }
        char *end = nullptr;
        int accepted = mallopt(parameter, static_cast<int>(strtol(value + 1, &end, 10)));
        all = accepted != 0 && all != 0;
        text = *end == ',' ? end + 1 : nullptr;
    }
    return all;
}

#endif
