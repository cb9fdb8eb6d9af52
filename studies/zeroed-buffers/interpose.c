/* Preloaded: counts calls of malloc, calloc and memset for a buffer of 1 MiB or more, as the program and its libraries
 * make them (libc's own, such as calloc's clearing, do not come through here). buffers.d prints the three counters. For x86-64 and
 * glibc. */
#include <stddef.h>

enum { BUFFER_BYTES = 1 << 20 };

long interposed_malloc_calls, interposed_calloc_calls, interposed_memset_calls;

/* glibc's own names: no dlsym, which allocates. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);

void *malloc(size_t bytes) {
  interposed_malloc_calls += bytes >= BUFFER_BYTES;
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  interposed_calloc_calls += count != 0 && bytes >= BUFFER_BYTES / count;
  return __libc_calloc(count, bytes);
}

/* By memset's own instruction, so that no compiler makes a call of memset of it. */
void *memset(void *to, int byte, size_t bytes) {
  void *at = to;
  interposed_memset_calls += bytes >= BUFFER_BYTES;
  __asm__ volatile("rep stosb" : "+D"(at), "+c"(bytes) : "a"(byte) : "memory");
  return to;
}
