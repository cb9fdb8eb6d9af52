/* Has glibc read a fabricated heap: lays memory out as FILE says and overwrites
 * main_arena; mallinfo and malloc_trim then walk that heap. Linked statically and started
 * without address randomisation, so that all addresses are known beforehand.
 *
 *   adopt              prints where the break can start
 *   adopt FILE         adopts; then 'i', 't' and 'q' as random_heap has them
 *
 * FILE: records of three words (what, address, bytes) with that many bytes behind
 * each. what 0: a mapping of its own; 1: the heap from the start of the break; 2: bytes
 * in this program's own data.
 */
#include "subject.h"

static void fill(int file, char *to, size_t bytes) {
  while (bytes) {
    ssize_t got = read(file, to, bytes);
    if (got <= 0) _exit(4);
    to += got;
    bytes -= (size_t)got;
  }
}

static void *place(uint64_t what, char *address, size_t bytes) {
  if (what == 0)
    return mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (what == 1) {
    char *now = sbrk(0);
    if (address < now || sbrk(address - now) != now) _exit(5);
    return sbrk((intptr_t)bytes);
  }
  return address;
}

int main(int count, char **values) {
  static struct figures now;
  uint64_t header[3];
  /* The first call initialises malloc without allocating memory. */
  read_mallinfo(&now);
  line_open();
  if (count < 2) {
    line_number("break_address", ((uint64_t)(uintptr_t)sbrk(0) + 4095) & ~UINT64_C(4095));
    line_print();
    hold_until_quit();
  }
  int file = open(values[1], O_RDONLY);
  if (file < 0) return 3;
  for (ssize_t got; (got = read(file, header, sizeof header)) != 0;) {
    char *address = (char *)(uintptr_t)header[1];
    if (got != sizeof header || place(header[0], address, header[2]) != address) return 6;
    fill(file, address, header[2]);
  }
  close(file);
  read_mallinfo(&now);
  line_mallinfo("mallinfo", &now);
  line_print();
  obey_heap_commands();
}
