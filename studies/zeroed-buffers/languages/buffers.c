/* Takes COUNT buffers of 1 MiB: buffers malloc|calloc|memset|aligned|mmap COUNT. Marks `before` and `taken`; prints one
 * line of JSON: wanted_bytes, and the sum of one byte of each buffer (which keeps them in use until then). */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "strandline.h"

enum { BUFFER_BYTES = 1 << 20 };

/* Where anybody might read them, as far as the compiler knows. */
void *volatile *buffers;

static void *take(const char *idiom) {
  if (!strcmp(idiom, "malloc")) return malloc(BUFFER_BYTES);
  if (!strcmp(idiom, "calloc")) return calloc(1, BUFFER_BYTES);
  if (!strcmp(idiom, "memset")) {
    void *buffer = malloc(BUFFER_BYTES);
    return buffer ? memset(buffer, 0, BUFFER_BYTES) : NULL;
  }
  if (!strcmp(idiom, "aligned")) {
    void *buffer = aligned_alloc(64, BUFFER_BYTES);
    return buffer ? memset(buffer, 0, BUFFER_BYTES) : NULL;
  }
  if (strcmp(idiom, "mmap")) exit(2);
  void *buffer = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return buffer == MAP_FAILED ? NULL : buffer;
}

int main(int count, char **values) {
  size_t wanted = count == 3 ? strtoul(values[2], NULL, 10) : 0;
  unsigned long sum = 0;
  if (!wanted || !(buffers = calloc(wanted, sizeof *buffers))) return 2;
  strandline_mark("before");
  for (size_t i = 0; i < wanted; i++)
    if (!(buffers[i] = take(values[1]))) return 3;
  strandline_mark("taken");
  for (size_t i = 0; i < wanted; i++) sum += ((unsigned char *)buffers[i])[5000];
  printf("{\"wanted_bytes\": %zu, \"sum\": %lu}\n", wanted * BUFFER_BYTES, sum);
}
