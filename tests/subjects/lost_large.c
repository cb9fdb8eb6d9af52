/* Two lost blocks of 1.25 GiB each, never written: one of the main thread, one of another thread. Each
 * contains a multiple of 1 GiB and none of 4 GiB, which a stale word may be: the upper half of a pointer
 * whose lower half was overwritten by 0. Blocks with such a multiple are kept.
 *
 *   lost_large
 *
 * Prints the number of lost blocks, 0 where there is no memory for them, and their bytes, and obeys 'q'.
 */
#include "subject.h"
#include <semaphore.h>

#define BYTES (UINT64_C(5) << 28)

static uint64_t lost;
static void *volatile kept[64];
static int kept_count;

/* Loses a block, some pages below the caller's frame. */
static __attribute__((noinline)) void lose_below(void) {
  char room[1 << 14];
  opaque(room);
  for (;;) {
    char *block = malloc(BYTES);
    if (!block) break;
    if ((uintptr_t)block >> 32 == ((uintptr_t)block + BYTES) >> 32) {
      lost++;
      break;
    }
    if (kept_count == 64) break;
    kept[kept_count++] = block;
  }
  opaque(room);
}

/* Writes over what calls have left on the stack and in the registers of arguments. */
static __attribute__((noinline)) void wipe(void) {
  volatile char room[1 << 16];
  for (size_t i = 0; i < sizeof room; i++) room[i] = 0;
  syscall(SYS_getppid, 0, 0, 0, 0, 0, 0);
}

static void lose(void) {
  lose_below();
  wipe();
}

static void *lose_and_park(void *ready) {
  lose();
  sem_post(ready);
  park();
  return 0;
}

int main(void) {
  static sem_t ready;
  pthread_t thread;
  lose();
  if (sem_init(&ready, 0, 0) || pthread_create(&thread, 0, lose_and_park, &ready)) return 3;
  while (sem_wait(&ready)) continue;
  line_open();
  line_number("lost_blocks", lost);
  line_number("lost_bytes", lost * BYTES);
  line_print();
  hold_until_quit();
}
