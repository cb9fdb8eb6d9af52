/* Sums malloc_usable_size over all blocks in use, of many sizes and alignments: the figure with
 * which tests compare every allocator.
 *
 *   usable [SEED] [COUNT]
 *
 * Prints its first line with no block of its own in use. 'a' allocates COUNT blocks and frees a
 * third, 'f' frees all; each prints how many are in use and their usable bytes.
 */
#include "subject.h"

static char *all[1 << 20];
static size_t count;

static void print_figures(void) {
  size_t blocks = 0, bytes = 0;
  for (size_t i = 0; i < count; i++) {
    if (!all[i]) continue;
    blocks++;
    bytes += malloc_usable_size(all[i]);
  }
  line_open();
  line_number("blocks", blocks);
  line_number("usable_bytes", bytes);
  line_print();
}

int main(int arguments, char **values) {
  uint64_t r = random_seed(argument(arguments, values, 1, 1));
  count = argument(arguments, values, 2, 20000);
  if (count > sizeof all / sizeof *all) return 2;
  /* Before its first block malloc has no structures that a reader could find. */
  free(opaque(malloc(1)));
  print_figures();
  for (;;) {
    char byte = 'q';
    if (read(0, &byte, 1) != 1 || byte == 'q') return 0;
    for (size_t i = 0; i < count; i++) {
      size_t kind = random_below(&r, 1000), bytes = 1 + random_below(&r, kind < 990 ? 700 : kind < 999 ? 40000 : 900000);
      if (byte == 'a') {
        if (kind % 10) all[i] = malloc(bytes);
        else if (posix_memalign((void **)&all[i], (size_t)16 << random_below(&r, 10), bytes)) return 3;
        if (!all[i]) return 3;
        memset(all[i], 1, bytes);
      }
    }
    for (size_t i = 0; i < count; i++) {
      if (byte != 'f' && random_below(&r, 3)) continue;
      free(all[i]);
      all[i] = 0;
    }
    print_figures();
  }
}
