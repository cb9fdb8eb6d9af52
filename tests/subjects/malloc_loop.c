/* Threads that only call malloc and free, without pause, and check their bytes.
 * 'c' prints how many rounds they did and how many bytes were wrong.
 *
 *   malloc_loop [THREADS]
 */
#include "subject.h"

static _Atomic uint64_t rounds, wrong;

static void *loop(void *argument_) {
  uint64_t r = random_seed((uint64_t)(uintptr_t)argument_);
  static __thread unsigned char *blocks[64];
  static __thread size_t sizes[64];
  for (;;) {
    unsigned at = (unsigned)random_below(&r, 64);
    if (blocks[at]) {
      unsigned char expected = (unsigned char)(sizes[at] % 255 + 1);
      if (blocks[at][0] != expected || blocks[at][sizes[at] - 1] != expected) atomic_fetch_add(&wrong, 1);
      free(blocks[at]);
    }
    sizes[at] = 1 + random_below(&r, 4000);
    blocks[at] = malloc(sizes[at]);
    if (!blocks[at]) _exit(3);
    memset(blocks[at], (int)(sizes[at] % 255 + 1), sizes[at]);
    atomic_fetch_add_explicit(&rounds, 1, memory_order_relaxed);
  }
  return 0;
}

int main(int count, char **values) {
  uint64_t threads = argument(count, values, 1, 8);
  for (uint64_t i = 0; i < threads; i++) {
    pthread_t id;
    if (pthread_create(&id, 0, loop, (void *)(uintptr_t)(i + 1))) return 3;
  }
  while (atomic_load(&rounds) < 1000) usleep(1000);
  line_open();
  line_number("threads", threads + 1);
  line_print();
  answer_counts("rounds", &rounds, &wrong);
}
