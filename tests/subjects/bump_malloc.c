/* A malloc that strandline has no reader for: it puts blocks one behind the other in one mapping
 * and reuses none. Tests preload it from a library that has the name of an allocator which
 * strandline only recognises. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

static const size_t BYTES = (size_t)1 << 32;
static _Atomic(uintptr_t) next;

static void *take(size_t align, size_t size) {
  uintptr_t none = 0;
  if (!atomic_load(&next)) {
    void *all = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return 0;
    if (!atomic_compare_exchange_strong(&next, &none, (uintptr_t)all)) munmap(all, BYTES);
  }
  align = align < 16 ? 16 : align;
  /* The word before a block is its size. */
  uintptr_t start = atomic_fetch_add(&next, size + 2 * align + 16) + 16;
  start = (start + align - 1) & ~(align - 1);
  ((size_t *)start)[-1] = size;
  return (void *)start;
}

void *malloc(size_t size) { return take(16, size); }
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return take(16, count * size); }
void *memalign(size_t align, size_t size) { return take(align, size); }
void *aligned_alloc(size_t align, size_t size) { return take(align, size); }
size_t malloc_usable_size(void *block) { return block ? ((size_t *)block)[-1] : 0; }

int posix_memalign(void **block, size_t align, size_t size) {
  *block = take(align, size);
  return *block ? 0 : ENOMEM;
}

void *realloc(void *block, size_t size) {
  void *new = take(16, size);
  size_t old = malloc_usable_size(block);
  return block && new ? memcpy(new, block, old < size ? old : size) : new;
}
