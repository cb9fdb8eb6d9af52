// Operators new and delete over mmap, for all of a program: the article's second attempt. Preloaded, so that the same
// program runs with and without them. Where a block is and how long is kept in a table, which the article proposes,
// because operator delete is not told the length of an array.
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <new>

namespace {
struct Kept {
    void *start;
    size_t bytes;
};
Kept table[4096];

void *take(size_t bytes) {
    bytes = bytes == 0 ? 1 : bytes;
    void *start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        throw std::bad_alloc();
    }
    for (Kept &kept : table) {
        if (kept.start == nullptr) {
            kept = Kept{start, bytes};
            return start;
        }
    }
    abort(); // more blocks at once than this study ever has
}

void give(void *start) {
    if (start == nullptr) {
        return;
    }
    for (Kept &kept : table) {
        if (kept.start == start) {
            munmap(start, kept.bytes);
            kept.start = nullptr;
            return;
        }
    }
    abort();
}
} // namespace

void *operator new(size_t bytes) { return take(bytes); }
void *operator new[](size_t bytes) { return take(bytes); }
void operator delete(void *start) noexcept { give(start); }
void operator delete[](void *start) noexcept { give(start); }
void operator delete(void *start, size_t) noexcept { give(start); }
void operator delete[](void *start, size_t) noexcept { give(start); }
