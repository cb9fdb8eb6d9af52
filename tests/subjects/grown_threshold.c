/* Raises malloc's thresholds with one large block, then allocates blocks of 1 MiB, which therefore
 * come from the heap, and frees them: the main arena's top, free chunks between small survivors,
 * and the top of a thread's arena stay resident.
 *
 *   grown_threshold
 */
#include "subject.h"

enum { BLOCKS = 40, BLOCK = 1 << 20, RAISING = 30 << 20 };

static void *blocks[2 * BLOCKS];
static pthread_barrier_t done;

static void *fill(size_t bytes) {
  void *block = malloc(bytes);
  if (!block) _exit(3);
  return memset(block, 7, bytes);
}

static void *of_thread(void *unused UNUSED) {
  static void *own[BLOCKS / 2];
  for (int i = 0; i < BLOCKS / 2; i++) own[i] = fill(BLOCK);
  for (int i = 0; i < BLOCKS / 2; i++) free(own[i]);
  pthread_barrier_wait(&done);
  for (;;) pause();
  return 0;
}

int main(void) {
  free(fill(RAISING));
  for (int i = 0; i < 2 * BLOCKS; i++) {
    blocks[i] = fill(BLOCK);
    if (i < BLOCKS) fill(2000);
  }
  pthread_t thread;
  if (pthread_barrier_init(&done, 0, 2) || pthread_create(&thread, 0, of_thread, 0)) return 3;
  pthread_barrier_wait(&done);
  for (int i = 0; i < 2 * BLOCKS; i++) free(blocks[i]);
  line_open();
  line_number("freed_bytes", (uint64_t)(2 * BLOCKS + BLOCKS / 2) * BLOCK);
  line_print();
  hold_until_quit();
}
