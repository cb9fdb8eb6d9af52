/* A main arena that continues in memory which the kernel has joined with the thread-local storage
 * of the main thread: a mapping blocks the break, and glibc maps more memory, which lands below the
 * storage. Only thread-local variables and a value of pthread_setspecific() refer to the last
 * blocks.
 *
 *   joined_storage
 *
 * Prints the number of these blocks and whether the kernel has joined the mappings, and waits for
 * the end of its input.
 */
#include "subject.h"
#include <pthread.h>

#define BLOCKS 40
#define BYTES 5000

static __thread void *volatile first;
static __thread void *volatile others[2];

/* Makes a list of `count` blocks: each refers to the next. */
static void *list(int count) {
  void *last = 0;
  for (int i = 0; i < count; i++) {
    void **block = malloc(BYTES);
    if (!block) exit(3);
    memset(block, 7, BYTES);
    *block = last;
    last = block;
  }
  return last;
}

/* Whether one mapping contains both addresses. */
static int is_joined(void *one, void *other) {
  char line[512];
  unsigned long start, end;
  int joined = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (sscanf(line, "%lx-%lx", &start, &end) == 2 && (unsigned long)one >= start && (unsigned long)one < end)
      joined = (unsigned long)other >= start && (unsigned long)other < end;
  if (maps) fclose(maps);
  return joined;
}

int main(void) {
  pthread_key_t key;
  char *end = (char *)(((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095);
  if (mmap(end, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) return 4;
  /* These blocks fill the rest of the heap in front of the mapping. */
  void *before = list(200);
  first = list(BLOCKS);
  others[1] = list(BLOCKS);
  if (pthread_key_create(&key, 0) || pthread_setspecific(key, list(BLOCKS))) return 5;
  line_open();
  line_number("blocks", 3 * BLOCKS);
  line_number("joined", (uint64_t)is_joined((void *)&first, first));
  line_print();
  while (getchar() != EOF) {}
  return before == first;
}
