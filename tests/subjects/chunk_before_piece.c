/* A full piece of the main arena right behind a chunk with its own mapping: the kernel lists both
 * as one mapping, which begins with that chunk, and no free chunk leads into the piece.
 *
 *   chunk_before_piece [ALIGNMENT_KIB] [CUT]
 *
 * The chunk is aligned to ALIGNMENT. With CUT=1 a part of it is advised, so that the kernel lists it
 * as several mappings. Then 'i', 't' and 'q' as random_heap has them.
 */
#include "subject.h"

/* A piece has 1 MiB (malloc.c, MMAP_AS_MORECORE_SIZE): 217 chunks of 4832 bytes and 32 bytes of the
 * top, too few to be freed once they have their fenceposts. */
enum { REQUEST = 4824, IN_A_PIECE = 217, LARGE = 300 << 10 };

static char *allocate(void) {
  char *block = malloc(REQUEST);
  if (!block) _exit(3);
  return memset(block, 5, REQUEST);
}

int main(int count, char **values) {
  static struct figures now;
  size_t alignment = argument(count, values, 1, 0) << 10;
  uint64_t cut = argument(count, values, 2, 0);
  char *first = allocate(), *block = first, *large = 0;
  char *end = (char *)(((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095);
  if (mmap(end, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) return 4;
  while (block >= first && block < end) block = allocate();
  char *piece = block - 16;
  for (int i = 1; i < IN_A_PIECE; i++) block = allocate();
  if (block - 16 != piece + (IN_A_PIECE - 1) * (REQUEST + 8)) return 5;
  if (posix_memalign((void **)&large, alignment ? alignment : 16, LARGE)) return 3;
  memset(large, 6, LARGE);
  /* The word before the size has the distance to the start of the mapping (malloc.c). */
  char *start = large - 16 - ((size_t *)large)[-2];
  char *large_end = (char *)(((uintptr_t)large + malloc_usable_size(large) + 4095) & ~(uintptr_t)4095);
  /* Another mapping keeps the next piece apart. */
  mmap(start - 4096, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  char *page = (char *)(((uintptr_t)large + 65536) & ~(uintptr_t)4095);
  if (cut && madvise(page, 4096, MADV_DONTDUMP)) return 6;
  allocate();
  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_number("adjacent", large_end == piece);
  line_print();
  obey_heap_commands();
}
