/* Gives memory up with MADV_FREE, and makes smaps count it as LazyFree.
 *
 * The kernel moves such pages to their list in batches of 31 a CPU (mm/swap.c, lru_lazyfree); smaps
 * counts a page as LazyFree once its batch is moved. Further pages of the same CPU push the last
 * batch out. */
#ifndef GIVE_UP_H
#define GIVE_UP_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

/* Writes to all pages of `memory` and gives them up. Returns 0 on success. */
static inline int give_up(char *memory, size_t bytes) {
  size_t further_bytes = 64 * 4096;
  cpu_set_t all, one;
  int cpu = sched_getcpu();
  if (cpu < 0 || sched_getaffinity(0, sizeof all, &all)) return -1;
  CPU_ZERO(&one);
  CPU_SET((size_t)cpu, &one);
  if (sched_setaffinity(0, sizeof one, &one)) return -1;
  char *further = mmap(0, further_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (further == MAP_FAILED) return -1;
  memset(memory, 7, bytes);
  memset(further, 7, further_bytes);
  if (madvise(memory, bytes, MADV_FREE) || madvise(further, further_bytes, MADV_FREE)) return -1;
  return munmap(further, further_bytes) || sched_setaffinity(0, sizeof all, &all) ? -1 : 0;
}
#endif
