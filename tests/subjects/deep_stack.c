/* A thread that used MIB MiB of its stack and now waits near its top: the pages below its
 * stack pointer stay resident and are not needed. The main thread does the same.
 *
 *   deep_stack [MIB]
 */
#include "subject.h"

static size_t depth_bytes;
static atomic_uint ready;

static __attribute__((noinline)) void descend(size_t left) {
  volatile char room[4096];
  memset((void *)room, 1, sizeof room);
  if (left > sizeof room) descend(left - sizeof room);
  room[0] = 2;
}

static void *deep(void *unused) {
  (void)unused;
  descend(depth_bytes);
  atomic_store(&ready, 1);
  park();
  return 0;
}

int main(int count, char **values) {
  pthread_t id;
  pthread_attr_t attributes;
  depth_bytes = argument(count, values, 1, 4) << 20;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, depth_bytes * 2);
  if (pthread_create(&id, &attributes, deep, 0)) return 3;
  while (!atomic_load(&ready)) usleep(1000);
  descend(depth_bytes);
  line_open();
  line_number("least_stranded_bytes", 2 * (depth_bytes - 64 * 1024));
  line_number("threads", 2);
  line_print();
  hold_until_quit();
}
