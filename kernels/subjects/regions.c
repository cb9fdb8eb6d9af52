/* Memory of kinds that only some kernels and settings have, filled with a pattern that can be checked.
 *
 *   regions KIND MIB
 *
 *   hugetlb    mapped of reserved huge pages
 *   merge      offered to the kernel's same-page merging: all pages are the same but each eighth
 *   high       mapped above 2^47, where only five levels of page tables lead
 *   plain      plain private memory
 *   write      the same, of which a thread writes one page after the other all the time, and looks first
 *
 * 'c' checks it all, 'd' writes one byte into each page of its second half.
 */
#include "subject.h"

static unsigned char *memory;
static size_t bytes;
static _Atomic uint64_t rounds, wrong;

static unsigned char pattern(size_t page, size_t at) {
  return (unsigned char)(1 + (page * 31 + at * 7) % 251);
}

static unsigned char same(size_t page, size_t at) {
  return (unsigned char)(page % 8 ? 1 + at % 251 : 1 + (page + at) % 251);
}

static unsigned char (*expected)(size_t, size_t) = pattern;

static uint64_t check(void) {
  uint64_t bad = 0;
  for (size_t at = 0; at < bytes; at++)
    if (memory[at] != expected(at / 4096, at % 4096)) bad++;
  return bad;
}

/* The last word of each page counts; what stands before it stays as it was. */
static void *writes(void *counts) {
  uint64_t *seen = counts;
  for (;;)
    for (size_t page = 0; page < bytes / 4096; page++) {
      volatile uint64_t *word = (uint64_t *)(memory + page * 4096 + 4088);
      if (*word != seen[page]) wrong++;
      *word = ++seen[page];
      if (page % 64 == 0) rounds++;
    }
  return 0;
}

int main(int count, char **values) {
  if (count < 2) return 2;
  const char *kind = values[1];
  int flags = MAP_PRIVATE | MAP_ANONYMOUS, is_writer = !strcmp(kind, "write");
  void *where = 0;
  bytes = argument(count, values, 2, 16) << 20;
  if (!strcmp(kind, "hugetlb")) flags |= MAP_HUGETLB;
  if (!strcmp(kind, "high")) where = (void *)(UINT64_C(1) << 50);
  memory = mmap(where, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) return 3;
  if (!strcmp(kind, "merge")) {
    expected = same;
    if (madvise(memory, bytes, MADV_MERGEABLE)) return 4;
  }
  for (size_t at = 0; at < bytes; at++) memory[at] = expected(at / 4096, at % 4096);
  if (is_writer) {
    pthread_t thread;
    uint64_t *seen = mmap(0, bytes / 512, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED) return 3;
    for (size_t page = 0; page < bytes / 4096; page++) memcpy(&seen[page], memory + page * 4096 + 4088, 8);
    if (pthread_create(&thread, 0, writes, seen)) return 3;
  }
  line_open();
  line_number("address", (uint64_t)(uintptr_t)memory);
  line_number("bytes", bytes);
  line_print();
  for (;;) switch (next_command()) {
      case 'c':
        line_open();
        line_number("wrong", is_writer ? atomic_load(&wrong) : check());
        line_number("rounds", atomic_load(&rounds));
        line_print();
        break;
      case 'd':
        for (size_t at = bytes / 2; at < bytes; at += 4096) memory[at] = expected(at / 4096, 0);
        line_open();
        line_number("written", bytes / 2);
        line_print();
        break;
      case 'q':
        _exit(0);
      default:
        break;
    }
}
