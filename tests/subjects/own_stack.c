/* Threads whose stacks are blocks of malloc: two in mmapped pieces of the main arena (the break is
 * blocked), one in its own mapping.
 *
 * Then 'i', 't' and 'q' as random_heap has them.
 */
#include "subject.h"
#include <pthread.h>

static _Atomic int running;

static void *stand(void *unused) {
  volatile char used[8192];
  memset((char *)used, 1, sizeof used);
  running++;
  for (;;) pause();
  return unused;
}

static int start(size_t bytes) {
  void *stack;
  pthread_t thread;
  pthread_attr_t attributes;
  if (posix_memalign(&stack, 4096, bytes) || pthread_attr_init(&attributes)) return 0;
  memset(stack, 7, bytes);
  return !pthread_attr_setstack(&attributes, stack, bytes) && !pthread_create(&thread, &attributes, stand, 0);
}

int main(void) {
  static struct figures now;
  static char *all[20000];
  char *end = (char *)(((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095);
  if (mmap(end, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) return 4;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!(all[i] = malloc(40 + i % 300))) return 3;
    memset(all[i], 7, 40);
    if ((i == 5000 || i == 9000) && !start(65536)) return 3;
  }
  if (!start(1 << 20)) return 3;
  while (running < 3) usleep(1000);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (i % 5) free(all[i]);
  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_print();
  obey_heap_commands();
}
