/* Threads with full caches of an allocator that is loaded while the program runs.
 *
 *   later_loaded LIBRARY THREADS
 *
 * LIBRARY exports jemalloc's functions without a prefix. Prints whether it could be loaded (not where
 * its thread-local storage must be there at the start) and what its statistics have as allocated, which
 * is in caches or its own, and obeys 'q'.
 */
#include "subject.h"
#include <dlfcn.h>
#include <semaphore.h>

#define BLOCKS 60

static void *(*allocate)(size_t);
static void (*release)(void *);
static int (*control)(const char *, void *, size_t *, void *, size_t);
static sem_t ready;

static void *fill_cache(void *unused) {
  void *blocks[BLOCKS];
  for (size_t bytes = 64; bytes <= 32768; bytes *= 2) {
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = allocate(bytes), 1, bytes);
    for (int i = 0; i < BLOCKS; i++) release(blocks[i]);
  }
  sem_post(&ready);
  park();
  return unused;
}

int main(int count, char **arguments) {
  int threads = count == 3 ? atoi(arguments[2]) : 0;
  void *library = count == 3 ? dlopen(arguments[1], RTLD_NOW) : 0;
  uint64_t epoch = 1;
  size_t epoch_bytes = sizeof epoch, allocated = 0, allocated_bytes = sizeof allocated;
  pthread_t thread;
  if (sem_init(&ready, 0, 0)) return 3;
  if (library) {
    *(void **)&allocate = dlsym(library, "malloc");
    *(void **)&release = dlsym(library, "free");
    *(void **)&control = dlsym(library, "mallctl");
  }
  for (int i = 0; control && i < threads; i++) {
    if (pthread_create(&thread, 0, fill_cache, 0)) return 3;
    while (sem_wait(&ready)) continue;
  }
  if (control) {
    control("epoch", &epoch, &epoch_bytes, &epoch, epoch_bytes);
    control("stats.allocated", &allocated, &allocated_bytes, 0, 0);
  }
  line_open();
  line_number("loaded", control != 0);
  line_number("allocated_bytes", allocated);
  line_print();
  hold_until_quit();
}
