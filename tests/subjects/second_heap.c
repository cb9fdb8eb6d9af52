/* A secondary arena that continues in a second heap, with a top of LEFT bytes left in its first.
 *
 *   second_heap [LEFT]
 *
 * malloc turns that top into fenceposts; bytes between them are free or unused, and never a block
 * in use. Then 'i', 't' and 'q' as random_heap has them.
 */
#include "subject.h"

enum { HEAP_BYTES = 64 << 20, HEADER = 8 };

static size_t left;
static size_t live, usable;
static atomic_uint parked;

static char *take(size_t bytes) {
  char *block = malloc(bytes);
  if (!block) _exit(3);
  *block = 1;
  live++;
  usable += malloc_usable_size(block);
  return block;
}

static void *traffic(void *unused) {
  (void)unused;
  /* The top extends from the end of the last block to the end of its heap. */
  char *block = take(1000), *end = (char *)(((uintptr_t)block & ~(uintptr_t)(HEAP_BYTES - 1)) + HEAP_BYTES);
  while ((size_t)(end - block) > (1 << 20)) block = take(100000);
  size_t top = (size_t)(end - block) + HEADER - malloc_usable_size(block);
  take(top - left - HEADER);
  take(5000); /* does not fit into the top */
  atomic_fetch_add(&parked, 1);
  park();
  return 0;
}

int main(int count, char **values) {
  static struct figures now;
  static pthread_t id;
  left = argument(count, values, 1, 48);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  if (pthread_create(&id, 0, traffic, 0)) return 3;
  while (!atomic_load(&parked)) usleep(1000);
  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_number("live", live);
  line_number("usable", usable);
  line_number("break_address", (uint64_t)(uintptr_t)sbrk(0));
  line_print();
  obey_heap_commands();
}
