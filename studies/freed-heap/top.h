// The top chunk of glibc's main arena, as it stands: where the rule's predictions start from.
//
// It is read at the header of the top chunk, which follows the last block cut from it (glibc malloc/malloc.c,
// "malloc_chunk details"). A block of 1,500 bytes that is kept stands before it, so that nothing merges backwards.
#ifndef FREED_HEAP_TOP_H
#define FREED_HEAP_TOP_H

#include <gnu/libc-version.h>
#include <malloc.h>
#include <stdint.h>

#include "memory.h"

// Takes the block that stands before the top, for good.
inline unsigned char *take_fence() {
    unsigned char *fence = static_cast<unsigned char *>(malloc(1500));
    asm volatile("" : : "r"(fence) : "memory");
    return fence;
}

// Says the members glibc (its version), top_offset_bytes (of its header, within its page), top_bytes, and top_pages: for each page from the
// header's on, 1 where it is resident, else 0. `fence` was cut from the top just now.
inline void say_top(unsigned char *fence) {
    const size_t page_bytes = 4096;
    unsigned char *end = fence + malloc_usable_size(fence);
    uintptr_t top = reinterpret_cast<uintptr_t>(end) - 8;
    uintptr_t bytes = *reinterpret_cast<const volatile uint64_t *>(end) & ~static_cast<uint64_t>(7);
    if (top + bytes != reinterpret_cast<uintptr_t>(sbrk(0))) {
        fail("the top chunk was not found: this is not glibc's malloc, or its layout is another one", "");
    }
    say("\"glibc\":\"%s\",", gnu_get_libc_version());
    say("\"top_offset_bytes\":%zu,\"top_bytes\":%zu,\"top_pages\":\"", static_cast<size_t>(top % page_bytes),
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
    say("\"");
}

#endif
