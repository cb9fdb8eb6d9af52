/* Random allocations and frees on the program's malloc, and the program's own sums of live blocks.
 *
 *   any_heap SEED [threads=N] [steps=N] [most=BYTES] [keep=PERCENT] [align=0]
 *
 * The seed determines missing arguments. 1 to 8 threads allocate sizes from one byte to `most`:
 * aligned (except with align=0), by calloc and by realloc. They free each other's blocks, and more
 * threads allocate, free and end.
 *
 * The threads start and wait before the program prints its first line, so that starting them
 * changes no figure. Commands:
 *
 *   w   runs a round, keeps `keep` percent of the blocks, prints their number and bytes
 *       (malloc_usable_size)
 *   s   prints the allocator's own statistics, from the functions that it exports
 *   p   calls the allocator's purge, prints by how much anonymous memory fell
 *   f   forks a child that only waits, prints its process id
 *   q   ends
 */
#include "subject.h"

#include <dlfcn.h>

enum { SLOTS = 6000, MAX_THREADS = 8 };

static _Atomic(void *) slots[SLOTS];
static unsigned threads, slots_used;
static uint64_t seed, steps, most = 4u << 20, keep = 100, leave, align = 1;
static pthread_barrier_t round_start, round_end;

static size_t random_size(uint64_t *r) {
  unsigned kind = (unsigned)random_below(r, 1000);
  uint64_t bound = kind < 600 ? 200 : kind < 800 ? 1100 : kind < 940 ? 9000 : kind < 990 ? 100000 : kind < 998 ? 400000 : most;
  return 1 + random_below(r, bound < most ? bound : most);
}

static void *allocate(uint64_t *r, size_t size) {
  void *block = 0;
  switch (align ? random_below(r, 16) : 2 + random_below(r, 14)) {
    case 0:
      return memalign((size_t)16 << random_below(r, 12), size);
    case 1:
      return posix_memalign(&block, (size_t)8 << random_below(r, 10), size) ? 0 : block;
    case 2:
    case 3:
      return calloc(1, size);
    default:
      return malloc(size);
  }
}

static void one_step(uint64_t *r) {
  unsigned at = (unsigned)random_below(r, slots_used);
  unsigned kind = (unsigned)random_below(r, 100);
  void *old = atomic_exchange(&slots[at], (void *)0);
  void *block = 0;
  if (kind < 50) {
    size_t size = random_size(r);
    if ((block = allocate(r, size)) && random_below(r, 4)) memset(block, 0x5a, size);
    free(old);
  } else if (kind < 60 && old) {
    block = realloc(old, random_size(r));
  } else {
    free(old);
  }
  if (block) free(atomic_exchange(&slots[at], block));
}

static void *traffic(void *argument_) {
  unsigned me = (unsigned)(uintptr_t)argument_;
  uint64_t r = random_seed(seed * 131 + me);
  /* The allocator makes the thread's cache now, before the program prints its first line. */
  free(malloc(100));
  for (;;) {
    pthread_barrier_wait(&round_start);
    for (uint64_t i = 0; i < steps; i++) one_step(&r);
    pthread_barrier_wait(&round_end);
  }
  return 0;
}

static void *once(void *argument_) {
  uint64_t r = random_seed(seed * 977 + (uintptr_t)argument_);
  for (uint64_t i = 0; i < steps / 4; i++) one_step(&r);
  return 0;
}

static void threads_that_end(void) {
  for (uintptr_t i = 0; i < leave; i++) {
    pthread_t thread;
    if (pthread_create(&thread, 0, once, (void *)i)) _exit(3);
    pthread_join(thread, 0);
  }
}

static void work(void) {
  uint64_t blocks = 0, bytes = 0, r = random_seed(seed + 7);
  pthread_barrier_wait(&round_start);
  pthread_barrier_wait(&round_end);
  threads_that_end();
  for (unsigned i = 0; i < slots_used; i++) {
    if (random_below(&r, 100) >= keep) free(atomic_exchange(&slots[i], (void *)0));
    void *block = atomic_load(&slots[i]);
    if (!block) continue;
    blocks++;
    bytes += malloc_usable_size(block);
  }
  line_open();
  line_number("blocks", blocks);
  line_number("bytes", bytes);
  line_print();
}

/* --- the allocators' own statistics ---------------------------------------- */
typedef int mallctl_function(const char *, void *, size_t *, void *, size_t);
typedef int tcmalloc_number(const char *, size_t *);
typedef _Bool google_number(const char *, size_t, size_t *);

static mallctl_function *mallctl_of;
static tcmalloc_number *number_of;
static google_number *google_number_of;
static void (*tcmalloc_release)(void), (*mimalloc_collect)(int);

/* Runs once, before the program prints its first line. dlsym allocates a block for each name that
 * it does not find and frees the previous one, and tcmalloc may empty a thread's cache at any free.
 */
static void look_up(void) {
  void *found = dlsym(RTLD_DEFAULT, "mallctl");
  if (!found) found = dlsym(RTLD_DEFAULT, "je_mallctl");
  mallctl_of = (mallctl_function *)(uintptr_t)found;
  number_of = (tcmalloc_number *)(uintptr_t)dlsym(RTLD_DEFAULT, "MallocExtension_GetNumericProperty");
  google_number_of = (google_number *)(uintptr_t)dlsym(RTLD_DEFAULT, "MallocExtension_Internal_GetNumericProperty");
  tcmalloc_release = (void (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
  mimalloc_collect = (void (*)(int))(uintptr_t)dlsym(RTLD_DEFAULT, "mi_collect");
}

static uint64_t mallctl_number(const char *name) {
  size_t number = 0, bytes = sizeof number;
  return mallctl_of(name, &number, &bytes, 0, 0) ? UINT64_MAX : number;
}

static void read_statistics(void) {
  static const char *const of_jemalloc[] = {"stats.allocated",         "stats.active", "stats.retained", "stats.metadata",
                                            "stats.arenas.4096.pdirty", "stats.arenas.4096.pmuzzy"};
  static const char *const of_tcmalloc[] = {
      "generic.current_allocated_bytes",   "generic.heap_size",
      "tcmalloc.pageheap_free_bytes",      "tcmalloc.pageheap_unmapped_bytes",
      "tcmalloc.thread_cache_free_bytes",  "tcmalloc.central_cache_free_bytes",
      "tcmalloc.transfer_cache_free_bytes"};
  if (mallctl_of) {
    uint64_t epoch = 1;
    size_t bytes = sizeof epoch;
    mallctl_of("epoch", &epoch, &bytes, &epoch, bytes);
    for (size_t i = 0; i < sizeof of_jemalloc / sizeof *of_jemalloc; i++)
      line_number(of_jemalloc[i], mallctl_number(of_jemalloc[i]));
  }
  static const char *const of_google[] = {
      "generic.current_allocated_bytes",      "generic.heap_size",
      "tcmalloc.central_cache_free",          "tcmalloc.cpu_free",
      "tcmalloc.pageheap_free_bytes",         "tcmalloc.pageheap_unmapped_bytes",
      "tcmalloc.sharded_transfer_cache_free", "tcmalloc.thread_cache_free",
      "tcmalloc.transfer_cache_free",         "tcmalloc.per_cpu_caches_active"};
  for (size_t i = 0; google_number_of && i < sizeof of_google / sizeof *of_google; i++) {
    size_t value = 0;
    google_number_of(of_google[i], strlen(of_google[i]), &value);
    line_number(of_google[i], value);
  }
  for (size_t i = 0; number_of && i < sizeof of_tcmalloc / sizeof *of_tcmalloc; i++) {
    size_t value = 0;
    number_of(of_tcmalloc[i], &value);
    line_number(of_tcmalloc[i], value);
  }
}

static void statistics(void) {
  line_open();
  read_statistics();
  line_print();
}

static void call_purge(void) {
  if (mallctl_of) mallctl_of("arena.4096.purge", 0, 0, 0, 0);
  else if (tcmalloc_release) tcmalloc_release();
  else if (mimalloc_collect) mimalloc_collect(1);
}

static void purge(void) {
  warm();
  smaps_sum("Anonymous:");
  uint64_t before = smaps_sum("Anonymous:");
  call_purge();
  uint64_t after = smaps_sum("Anonymous:");
  line_open();
  line_number("returned_bytes", before > after ? before - after : 0);
  line_print();
}

static void split(void) {
  pid_t child = fork();
  if (child == 0) {
    /* The child shares its parent's input and must not read it: the test kills it. */
    for (;;) pause();
  }
  line_open();
  line_number("child", (uint64_t)child);
  line_print();
}

int main(int count, char **values) {
  seed = argument(count, values, 1, 1);
  uint64_t r = random_seed(seed);
  threads = 1 + (unsigned)random_below(&r, MAX_THREADS);
  steps = 300 + random_below(&r, 4000);
  slots_used = 50 + (unsigned)random_below(&r, SLOTS - 50);
  leave = random_below(&r, 3);
  for (int i = 2; i < count; i++) {
    char *value = strchr(values[i], '=');
    if (!value) return 2;
    uint64_t number = strtoull(value + 1, 0, 0);
    if (!strncmp(values[i], "threads=", 8)) threads = (unsigned)number;
    else if (!strncmp(values[i], "steps=", 6)) steps = number;
    else if (!strncmp(values[i], "most=", 5)) most = number;
    else if (!strncmp(values[i], "keep=", 5)) keep = number;
    else if (!strncmp(values[i], "align=", 6)) align = number;
    else return 2;
  }
  if (pthread_barrier_init(&round_start, 0, threads + 1) || pthread_barrier_init(&round_end, 0, threads + 1)) return 3;
  for (uintptr_t i = 0; i < threads; i++) {
    pthread_t thread;
    if (pthread_create(&thread, 0, traffic, (void *)i)) return 3;
  }
  /* Threads that end leave stacks and the C library's blocks, which later threads reuse. */
  uint64_t real = steps;
  steps = 0;
  threads_that_end();
  pthread_barrier_wait(&round_start);
  pthread_barrier_wait(&round_end);
  steps = real;
  /* The threads return to the barrier of the next round, and allocate nothing on the way. */
  look_up();
  /* The first calls allocate memory of their own and touch pages of libraries. */
  warm();
  smaps_sum("Anonymous:");
  call_purge();
  line_open();
  read_statistics();
  line_open();
  line_number("threads", threads);
  line_print();
  for (;;) {
    switch (next_command()) {
      case 'w': work(); break;
      case 's': statistics(); break;
      case 'p': purge(); break;
      case 'f': split(); break;
      default: _exit(0);
    }
  }
}
