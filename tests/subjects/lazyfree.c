/* MIB MiB written, then given up with MADV_FREE: resident, and the kernel's to
 * take. */
#include "subject.h"

int main(int count, char **values) {
  size_t bytes = argument(count, values, 1, 32) << 20;
  char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 3;
  memset(memory, 7, bytes);
  if (madvise(memory, bytes, MADV_FREE)) return 3;
  line_open();
  line_number("lazyfree_bytes", bytes);
  line_print();
  hold_until_quit();
}
