/* Blocks with their own mapping, aligned to ALIGNMENT, with a block of no alignment beside each.
 *
 *   aligned_blocks ALIGNMENT_KIB BYTES_KIB LATER_KIB
 *
 * Prints its first line with no block of its own in use. 'a' allocates four aligned blocks of
 * BYTES, and reallocates them to LATER where that is not 0: to more, which moves their mappings to
 * other addresses, since other blocks follow, or to less, which cuts their mappings. Prints how many
 * blocks are in use and their usable bytes.
 */
#include "subject.h"

enum { BLOCKS = 4 };

int main(int count, char **values) {
  static void *aligned[BLOCKS], *others[BLOCKS];
  static struct figures now;
  size_t alignment = argument(count, values, 1, 2048) << 10, bytes = argument(count, values, 2, 4096) << 10;
  size_t later = argument(count, values, 3, 0) << 10, usable = 0;
  free(opaque(malloc(1)));
  line_open();
  line_print();
  if (next_command() != 'a') return 0;
  for (int i = 0; i < BLOCKS; i++) {
    if (posix_memalign(&aligned[i], alignment, bytes)) return 3;
    memset(aligned[i], 1, bytes);
    if (!(others[i] = malloc((200 << 10) + i * 4096))) return 3;
    memset(others[i], 2, 200 << 10);
  }
  for (int i = 0; later && i < BLOCKS; i++) {
    if (!(aligned[i] = realloc(aligned[i], later + (size_t)i * 4096))) return 3;
    memset(aligned[i], 3, later);
  }
  for (int i = 0; i < BLOCKS; i++) usable += malloc_usable_size(aligned[i]) + malloc_usable_size(others[i]);
  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_number("blocks", 2 * BLOCKS);
  line_number("usable_bytes", usable);
  line_print();
  hold_until_quit();
}
