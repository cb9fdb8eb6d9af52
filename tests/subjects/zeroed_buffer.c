/* Holds a buffer of MIB MiB into which it wrote zeros: its pages are resident, and their
 * release changes no byte that the program reads. `mmap` allocates it by mmap instead of
 * malloc.
 *
 *   zeroed_buffer MIB [mmap]
 *
 * 'w' writes one byte into its first page and prints a line; 'c' checks all its bytes.
 */
#include "subject.h"

int main(int count, char **values) {
  size_t bytes = argument(count, values, 1, 512) << 20, wrong, written = 0;
  char *buffer = count > 2 ? mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                           : opaque(malloc(bytes));
  if (!buffer || buffer == MAP_FAILED) return 3;
  memset(opaque(buffer), 0, bytes);
  opaque(buffer);
  line_open();
  line_number("zero_bytes", bytes);
  line_number("address", (uint64_t)(uintptr_t)buffer);
  line_print();
  for (;;) switch (next_command()) {
      case 'w':
        buffer[0] = 1;
        written = 1;
        line_open();
        line_number("written", 1);
        line_print();
        break;
      case 'c':
        wrong = buffer[0] != (char)written;
        for (size_t i = 1; i < bytes; i++) wrong += buffer[i] != 0;
        line_open();
        line_number("wrong_bytes", wrong);
        line_print();
        break;
      case 'q':
        return 0;
      default:
        break;
    }
}
