/* Transparent huge pages: requests COUNT of them, cuts one by munmap and one by
 * MADV_DONTNEED of a single small page, and leaves one with a single written byte.
 * Prints the kernel's count of huge-mapped bytes, which may be 0 if the machine has no
 * huge page free. */
#include "subject.h"

int main(int count, char **values) {
  enum { HUGE = 2 << 20 };
  size_t pages = argument(count, values, 1, 16);
  if (pages < 4) return 2;
  char *area = mmap(0, (pages + 1) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) return 3;
  char *memory = (char *)(((uintptr_t)area + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
  if (madvise(memory, pages * HUGE, MADV_HUGEPAGE)) return 3;
  for (size_t i = 0; i + 1 < pages; i++) memset(memory + i * HUGE, 7, HUGE);
  memory[(pages - 1) * HUGE] = 7; /* 2 MiB resident for one byte */
  munmap(memory + HUGE / 2, HUGE / 2);
  madvise(memory + HUGE + 40960, 4096, MADV_DONTNEED);
  line_open();
  line_number("huge_bytes", smaps_sum("AnonHugePages:"));
  line_number("anonymous_bytes", smaps_sum("Anonymous:"));
  line_print();
  hold_until_quit();
}
