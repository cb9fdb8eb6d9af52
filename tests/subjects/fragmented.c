/* Frees most of a heap around evenly spread survivors: keeps one block in EVERY.
 *
 *   fragmented [COUNT] [BYTES] [EVERY] [LOCALS]
 *
 * LOCALS bytes of its stack are left unwritten. Then 'i', 't' and 'q' as random_heap has them.
 */
#include "subject.h"

int main(int count, char **values) {
  static struct figures now;
  size_t blocks = argument(count, values, 1, 200000), bytes = argument(count, values, 2, 200);
  size_t every = argument(count, values, 3, 500), survivors = 0;
  char locals[argument(count, values, 4, 0) + 1];
  __asm__ volatile("" : : "r"(locals) : "memory");
  char **all = mmap(0, blocks * sizeof *all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED || !every) return 3;
  for (size_t i = 0; i < blocks; i++) {
    if (!(all[i] = malloc(bytes))) return 3;
    memset(all[i], 7, bytes);
  }
  for (size_t i = 0; i < blocks; i++) {
    if (i % every) free(all[i]);
    else survivors++;
  }
  munmap(all, blocks * sizeof *all);
  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_number("survivors", survivors);
  line_number("survivor_bytes", survivors * bytes);
  line_number("break_address", (uint64_t)(uintptr_t)sbrk(0));
  line_print();
  obey_heap_commands();
}
