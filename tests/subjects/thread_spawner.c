/* Starts and ends threads without pause, each of which allocates and frees. 'c'
 * prints how many ended and how many results were wrong.
 */
#include "subject.h"

static _Atomic uint64_t ended, wrong;

static void *brief_life(void *argument_) {
  uint64_t r = random_seed((uint64_t)(uintptr_t)argument_);
  uint64_t sum = 0;
  for (int i = 0; i < 50; i++) {
    size_t bytes = 8 + random_below(&r, 3000);
    unsigned char *block = malloc(bytes);
    if (!block) _exit(3);
    memset(block, i, bytes);
    sum += block[bytes - 1];
    free(opaque(block));
  }
  return (void *)(uintptr_t)sum;
}

static void *spawn(void *unused) {
  (void)unused;
  for (uint64_t n = 1;; n++) {
    pthread_t ids[3];
    for (int i = 0; i < 3; i++)
      if (pthread_create(&ids[i], 0, brief_life, (void *)(uintptr_t)(n * 3 + (uint64_t)i))) _exit(3);
    for (int i = 0; i < 3; i++) {
      void *sum;
      pthread_join(ids[i], &sum);
      if ((uintptr_t)sum != 49 * 50 / 2) atomic_fetch_add(&wrong, 1);
      atomic_fetch_add(&ended, 1);
    }
  }
  return 0;
}

int main(void) {
  pthread_t id;
  if (pthread_create(&id, 0, spawn, 0)) return 3;
  while (atomic_load(&ended) < 10) usleep(1000);
  line_open();
  line_number("threads", 2);
  line_print();
  answer_counts("ended", &ended, &wrong);
}
