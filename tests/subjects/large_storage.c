/* Threads with full caches of free chunks, in a program whose thread-local storage puts 40 KiB between a
 * thread's FS base and libc's pointer to the cache.
 *
 *   large_storage THREADS
 *
 * Prints the number of threads and the bytes of chunks in their caches, and obeys 'q'.
 */
#include "subject.h"
#include <semaphore.h>

#define BINS 64
#define SLOTS 7

static __thread volatile char storage[40 << 10];
static sem_t ready;

static void *fill_cache(void *unused) {
  void *blocks[BINS * SLOTS];
  int count = 0;
  storage[5] = 1;
  for (size_t bin = 0; bin < BINS; bin++) {
    for (int slot = 0; slot < SLOTS; slot++) blocks[count++] = malloc(24 + 16 * bin);
  }
  while (count) free(blocks[--count]);
  sem_post(&ready);
  park();
  return unused;
}

int main(int count, char **arguments) {
  int threads = count == 2 ? atoi(arguments[1]) : 0;
  pthread_t thread;
  uint64_t bytes = 0;
  if (sem_init(&ready, 0, 0)) return 3;
  for (int i = 0; i < threads; i++) {
    if (pthread_create(&thread, 0, fill_cache, 0)) return 3;
    while (sem_wait(&ready)) continue;
  }
  for (uint64_t bin = 0; bin < BINS; bin++) bytes += SLOTS * (32 + 16 * bin);
  line_open();
  line_number("threads", (uint64_t)threads);
  line_number("cached_bytes", bytes * (uint64_t)threads);
  line_print();
  hold_until_quit();
}
