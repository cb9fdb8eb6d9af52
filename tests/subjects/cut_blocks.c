/* Blocks whose memory the kernel lists in several mappings, because the program called madvise,
 * mprotect, mlock or prctl for a part of them, as numpy does for arrays of 4 MiB and more.
 *
 *   cut_blocks [PLACE]
 *
 * PLACE: 0 blocks with a mapping of their own; 1 blocks in the main arena on brk; 2 blocks in the
 * main arena where brk is blocked; 3 blocks in a thread's arena. Then 'i', 't' and 'q' as
 * random_heap has them.
 */
#include "subject.h"
#include <sys/prctl.h>

enum { BLOCKS = 12, BYTES = 8 << 20, PAGE = 4096 };

static char *blocks[BLOCKS], *fillers[BLOCKS];
static atomic_uint done;
static unsigned place;

/* Makes a page in the middle of the block a mapping of its own, by method number `way`. */
static void cut(char *block, unsigned way) {
  char *middle = (char *)(((uintptr_t)block + BYTES / 2) & ~(uintptr_t)(PAGE - 1));
  switch (way % 6) {
    case 0: madvise(middle, PAGE, MADV_HUGEPAGE); break;
    case 1: mprotect(middle, PAGE, PROT_READ); break;
    case 2: mlock(middle, PAGE); break;
    case 3: madvise(middle, 16 * PAGE, MADV_DONTFORK); break;
    case 4: mprotect(middle, 3 * PAGE, PROT_NONE); break;
    case 5: prctl(0x53564d41 /* PR_SET_VMA */, 0, middle, PAGE, "part"); break;
  }
}

static void *fill(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < BLOCKS; i++) {
    if (!(blocks[i] = malloc(BYTES)) || !(fillers[i] = malloc(1000))) _exit(3);
    memset(blocks[i], 7, BYTES);
    memset(fillers[i], 7, 1000);
    cut(blocks[i], i);
  }
  /* Frees every third block that it can: malloc cannot reuse a block with a read-only part. */
  if (place == 0)
    for (unsigned i = 0; i < BLOCKS; i += 3) free(blocks[i]);
  atomic_store(&done, 1);
  if (place == 3) park();
  return 0;
}

int main(int count, char **values) {
  static struct figures now;
  static pthread_t id;
  place = (unsigned)argument(count, values, 1, 0);
  if (place) mallopt(M_MMAP_THRESHOLD, 32 << 20);
  if (place == 2) {
    uintptr_t end = ((uintptr_t)sbrk(0) + (1 << 20)) & ~(uintptr_t)(PAGE - 1);
    if (mmap((void *)end, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
      return 4;
  }
  if (place == 3) {
    if (pthread_create(&id, 0, fill, 0)) return 3;
    while (!atomic_load(&done)) usleep(1000);
  } else {
    fill(0);
  }
  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_number("block_bytes", (uint64_t)BYTES);
  line_number("live_blocks", place ? BLOCKS : BLOCKS - BLOCKS / 3);
  line_number("break_address", (uint64_t)(uintptr_t)sbrk(0));
  line_print();
  obey_heap_commands();
}
