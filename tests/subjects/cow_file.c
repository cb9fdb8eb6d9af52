/* Maps a file of MIB MiB privately, reads every page and writes to every second one, so
 * that half of the pages are the file's and half are the process's own. The file is
 * deleted, like that of an upgraded program. */
#include "subject.h"

int main(int count, char **values) {
  size_t bytes = argument(count, values, 1, 16) << 20;
  char path[] = "/tmp/strandline-subject-XXXXXX";
  int file = mkstemp(path);
  if (file < 0) return 3;
  unlink(path);
  static char page[4096];
  memset(page, 5, sizeof page);
  for (size_t i = 0; i < bytes; i += sizeof page)
    if (write(file, page, sizeof page) != sizeof page) return 3;
  volatile char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  if (memory == MAP_FAILED) return 3;
  unsigned sum = 0;
  for (size_t i = 0; i < bytes; i += 4096) sum += (unsigned char)memory[i];
  for (size_t i = 0; i < bytes; i += 8192) memory[i] = 6;
  line_open();
  line_number("copied_bytes", bytes / 2);
  line_number("clean_bytes", bytes / 2);
  line_number("sum", sum);
  line_print();
  hold_until_quit();
}
