/* calloc is lazy as long as its memory comes fresh from the kernel. Takes BUFFERS zeroed buffers of 1 MiB in three
 * rounds, writes to every page of them, and frees them again:
 *
 *   again BUFFERS
 *
 *   first  from fresh mappings of their own
 *   second from the heap, freshly grown: freeing the first mapping raised glibc's moving threshold over 1 MiB
 *   third  from heap memory that was used before: all of the second round but its last was freed, and that one keeps
 *          the heap from shrinking
 *
 * Prints one line of JSON: `wanted_bytes`, and for each round ROUND_mapped_bytes, of the buffers' pages that the page
 * table maps once they are taken and before they are written, and ROUND_calloc_seconds, user and system time of the
 * taking. Huge pages are refused, so that all is counted in pages of 4096 bytes whatever the machine's setting. Ends with 3
 * where memory is not given or the page table cannot be read. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20, PAGE_BYTES = 4096, PAGES = BUFFER_BYTES / PAGE_BYTES };

static double seconds(void) {
  struct rusage now;
  getrusage(RUSAGE_SELF, &now);
  return now.ru_utime.tv_sec + now.ru_stime.tv_sec + (now.ru_utime.tv_usec + now.ru_stime.tv_usec) / 1e6;
}

/* A figure that was not measured must not look like one. */
static void fail(const char *what) {
  perror(what);
  exit(3);
}

/* Bytes of the whole pages within the buffers that are mapped, by bit 63 of the words of pagemap. */
static long mapped(char *const *buffers, size_t count) {
  int map = open("/proc/self/pagemap", O_RDONLY);
  uint64_t words[PAGES - 1];
  long pages = 0;
  if (map < 0) fail("again: /proc/self/pagemap");
  for (size_t i = 0; i < count; i++) {
    off_t first = ((uintptr_t)buffers[i] + PAGE_BYTES - 1) / PAGE_BYTES;
    if (pread(map, words, sizeof words, first * (off_t)sizeof *words) != sizeof words)
      fail("again: /proc/self/pagemap");
    for (size_t k = 0; k < PAGES - 1; k++) pages += words[k] >> 63;
  }
  close(map);
  return pages * PAGE_BYTES;
}

static void take(char **buffers, size_t count, const char *round) {
  double start = seconds();
  for (size_t i = 0; i < count; i++)
    if (!(buffers[i] = calloc(1, BUFFER_BYTES))) fail("again: calloc");
  printf("\"%s_calloc_seconds\": %.6f, ", round, seconds() - start);
  printf("\"%s_mapped_bytes\": %ld, ", round, mapped(buffers, count));
  for (size_t i = 0; i < count; i++)
    for (size_t at = 0; at < BUFFER_BYTES; at += PAGE_BYTES) ((volatile char *)buffers[i])[at] = 1;
}

int main(int count, char **values) {
  size_t many = count > 1 ? strtoul(values[1], NULL, 10) : 512;
  char **buffers = malloc((many + 1) * sizeof *buffers);
  if (!many || !buffers) return 2;
  prctl(PR_SET_THP_DISABLE, 1UL, 0UL, 0UL, 0UL);
  putchar('{');
  take(buffers, many, "first");
  for (size_t i = 0; i < many; i++) free(buffers[i]);
  take(buffers, many, "second");
  buffers[many] = calloc(1, BUFFER_BYTES); /* The survivor, behind all others. */
  for (size_t i = 0; i < many; i++) free(buffers[i]);
  take(buffers, many, "third");
  printf("\"wanted_bytes\": %zu}\n", many * BUFFER_BYTES);
}
