/* Makes random allocations and frees from a seed, parks all threads, and prints malloc's own
 * figures.
 *
 *   random_heap SEED [threads=N] [steps=N] [sbrk=0|1] [block=0|1] [leave=0|1] [tune=0|1]
 *
 * The seed determines missing arguments. 1 to 8 threads allocate sizes from one byte
 * to several MiB, aligned to up to 4 MiB, by realloc and by calloc, and free each other's
 * blocks. sbrk=1: the program moves the break itself between rounds. block=1:
 * a page is mapped behind the break, so that the main arena continues in mmapped
 * pieces. leave=1: some threads end after their allocations, so that glibc reuses or
 * leaves their arenas and flushes their caches. tune=1: mallopt sets the mmap threshold, the
 * top padding and the trim threshold. MALLOC_* and GLIBC_TUNABLES act as in any program.
 *
 * At the end every thread is parked outside malloc, or about to be. The program calls mallinfo
 * first and prints with write(2) only. Then 'i' prints mallinfo, 't' calls malloc_trim and prints
 * by how much the kernel's count of anonymous memory fell, 'q' ends.
 */
#include "subject.h"

enum { SLOTS = 6000, ROUNDS = 4, MAX_THREADS = 8 };

static _Atomic(void *) slots[SLOTS];
static unsigned threads, slots_used, fill_share;
static uint64_t seed, steps, sbrk_too, block_brk, leave, tune;
static pthread_barrier_t round_start, round_end;
static atomic_uint parked;

static size_t random_size(uint64_t *r) {
  unsigned kind = (unsigned)random_below(r, 1000);
  if (kind < 600) return 1 + random_below(r, 200);
  if (kind < 800) return 1 + random_below(r, 1100);
  if (kind < 940) return 1 + random_below(r, 9000);
  if (kind < 990) return 1 + random_below(r, 100000);
  if (kind < 998) return 1 + random_below(r, 400000);
  return 1 + random_below(r, 4u << 20);
}

static void *allocate(uint64_t *r, size_t size) {
  void *block = 0;
  switch (random_below(r, 20)) {
    case 0:
      return memalign((size_t)16 << random_below(r, 19), size);
    case 1:
      return posix_memalign(&block, (size_t)8 << random_below(r, 10), size) ? 0 : block;
    case 2: {
      size_t alignment = (size_t)16 << random_below(r, 9);
      return aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
    }
    case 3:
    case 4:
    case 5:
      return calloc(1, size);
    case 6:
      return size < 100000 ? valloc(size) : malloc(size);
    default:
      return malloc(size);
  }
}

static void fill(uint64_t *r, void *block, size_t size) {
  if (block && random_below(r, 100) < fill_share) memset(block, (int)(1 + random_below(r, 255)), size);
}

static void one_step(uint64_t *r) {
  unsigned at = (unsigned)random_below(r, slots_used);
  unsigned kind = (unsigned)random_below(r, 100);
  void *old = atomic_exchange(&slots[at], (void *)0);
  void *block = 0;
  if (kind < 45) {
    size_t size = random_size(r);
    block = allocate(r, size);
    fill(r, block, size);
    free(old);
  } else if (kind < 60 && old) {
    size_t size = random_size(r);
    block = realloc(old, size);
    fill(r, block, size);
  } else {
    free(old);
  }
  if (block) {
    block = atomic_exchange(&slots[at], block);
    free(block);
  }
}

/* Only the main thread moves the break, and only while the others wait: sbrk
 * must not run beside malloc's own calls of it. */
static void between_rounds(uint64_t *r, int round) {
  if (sbrk_too && random_below(r, 3) < 2) {
    size_t bytes = 1 + random_below(r, 60000);
    /* Once a brk has failed, glibc no longer aligns the break to pages, and sysmalloc asserts that
     * it is (glibc 2.36). */
    if (block_brk) bytes = (bytes + 4095) & ~(size_t)4095;
    char *mine = sbrk((intptr_t)bytes);
    if (mine != (char *)-1) memset(mine, 0x5a, bytes);
  }
  if (block_brk && round == 1) {
    uintptr_t end = ((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095;
    /* Without MAP_FIXED the address is a hint, so that no mapping is replaced. */
    mmap((void *)end, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
}

static void *traffic(void *argument_) {
  unsigned me = (unsigned)(uintptr_t)argument_;
  uint64_t r = random_seed(seed * 131 + me);
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&round_start);
    for (uint64_t i = 0; i < steps; i++) one_step(&r);
    pthread_barrier_wait(&round_end);
    if (me == 0) between_rounds(&r, round);
  }
  if (me == 0) return 0;
  if (leave && me % 2) return 0;
  atomic_fetch_add(&parked, 1);
  park();
  return 0;
}

static void options(int count, char **values) {
  uint64_t r;
  seed = argument(count, values, 1, 1);
  r = random_seed(seed);
  threads = 1 + (unsigned)random_below(&r, MAX_THREADS);
  steps = 300 + random_below(&r, 4000);
  sbrk_too = random_below(&r, 4) == 0;
  block_brk = random_below(&r, 5) == 0;
  leave = random_below(&r, 3) == 0;
  tune = random_below(&r, 3) == 0;
  slots_used = 50 + (unsigned)random_below(&r, SLOTS - 50);
  fill_share = 20 + (unsigned)random_below(&r, 81);
  for (int i = 2; i < count; i++) {
    char *value = strchr(values[i], '=');
    if (!value) _exit(2);
    uint64_t number = strtoull(value + 1, 0, 0);
    if (!strncmp(values[i], "threads=", 8)) threads = (unsigned)number;
    else if (!strncmp(values[i], "steps=", 6)) steps = number;
    else if (!strncmp(values[i], "sbrk=", 5)) sbrk_too = number;
    else if (!strncmp(values[i], "block=", 6)) block_brk = number;
    else if (!strncmp(values[i], "leave=", 6)) leave = number;
    else if (!strncmp(values[i], "tune=", 5)) tune = number;
    else _exit(2);
  }
  if (tune) {
    mallopt(M_MMAP_THRESHOLD, 20000 + (int)random_below(&r, 2000000));
    if (random_below(&r, 2)) mallopt(M_TOP_PAD, (int)random_below(&r, 2000000));
    if (random_below(&r, 2)) mallopt(M_TRIM_THRESHOLD, (int)random_below(&r, 4000000));
  }
  if (threads < 1 || threads > MAX_THREADS) _exit(2);
}

int main(int count, char **values) {
  static struct figures now;
  static pthread_t ids[MAX_THREADS];
  unsigned stay = 0;
  options(count, values);
  if (pthread_barrier_init(&round_start, 0, threads) || pthread_barrier_init(&round_end, 0, threads)) return 3;
  for (unsigned i = 1; i < threads; i++) {
    if (pthread_create(&ids[i], 0, traffic, (void *)(uintptr_t)i)) return 3;
    if (!(leave && i % 2)) stay++;
  }
  traffic((void *)0);
  for (unsigned i = 1; i < threads; i++)
    if (leave && i % 2) pthread_join(ids[i], 0);
  while (atomic_load(&parked) < stay) usleep(1000);
  /* The last threads are between the counter and pause(), where they allocate nothing. */

  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_number("threads", 1 + stay);
  line_number("break_address", (uint64_t)(uintptr_t)sbrk(0));
  line_number("sbrk", sbrk_too);
  line_number("block", block_brk);
  line_number("tune", tune);
  line_print();
  obey_heap_commands();
}
