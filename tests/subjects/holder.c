/* A program that tells no mark, whose memory takes a known course and falls as it ends, as an interpreter's does that
 * tears itself down.
 *
 *   holder COURSE MEBIBYTES HOLD_MS
 *
 * hold   fills memory, drops nearly all of it around small blocks that stay, holds what is left, drops those too
 *        and gives everything back to the kernel, and ends: what glibc kept, another allocator need not have kept
 * keep   fills memory, holds it, ends
 * grow   fills memory, gives it back, ends
 * steps  holds the whole, then half of it, then gives that back in four steps, ends
 * slow   holds the whole, gives it back over twice the time, ends
 * rise   holds a tenth, fills the whole, ends
 * saw    fills and gives back a third, again and again, ends as it stands
 */
#include "subject.h"

enum { LARGE = 100000, SMALL = 500, PAGE = 4096, MIB = 1 << 20 };

static size_t bytes;
static useconds_t hold_us;

/* Blocks of LARGE bytes with small ones between; returns the small ones. */
static char **hold_pinned(size_t *count) {
  *count = bytes / LARGE;
  char **large = malloc(*count * sizeof *large), **small = malloc(*count * sizeof *small);
  if (!large || !small) _exit(3);
  for (size_t i = 0; i < *count; i++) {
    large[i] = malloc(LARGE), small[i] = malloc(SMALL);
    if (!large[i] || !small[i]) _exit(3);
    memset(large[i], 1, LARGE);
    memset(small[i], 1, SMALL);
  }
  for (size_t i = 0; i < *count; i++) free(large[i]);
  free(large);
  return small;
}

static void touch(char *from, size_t length) { memset(from, 1, length); }

static void give_back(char *from, size_t length) { madvise(from, length, MADV_DONTNEED); }

int main(int count, char **values) {
  if (count != 4) return 2;
  const char *course = values[1];
  bytes = strtoull(values[2], 0, 0) << 20;
  hold_us = (useconds_t)strtoul(values[3], 0, 0) * 1000;
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  if (!strcmp(course, "hold")) {
    size_t kept;
    char **small = hold_pinned(&kept);
    usleep(hold_us);
    for (size_t i = 0; i < kept; i++) free(small[i]);
    free(small);
    malloc_trim(0);
    return 0;
  }
  char *all = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return 3;
  if (!strcmp(course, "rise")) {
    touch(all, bytes / 10);
    usleep(hold_us);
    for (size_t at = bytes / 10 / MIB * MIB; at < bytes; at += MIB) touch(all + at, MIB), usleep(1000);
    return 0;
  }
  touch(all, bytes);
  if (!strcmp(course, "keep")) {
    usleep(hold_us);
  } else if (!strcmp(course, "grow")) {
    give_back(all, bytes);
  } else if (!strcmp(course, "steps")) {
    usleep(hold_us);
    give_back(all, bytes / 2);
    usleep(hold_us);
    for (int n = 4; n < 8; n++) give_back(all + bytes / 8 * n, bytes / 8), usleep(5000);
  } else if (!strcmp(course, "slow")) {
    usleep(hold_us);
    size_t steps = bytes / MIB;
    for (size_t n = 0; n < steps; n++) give_back(all + n * MIB, MIB), usleep(2 * hold_us / (useconds_t)steps);
  } else if (!strcmp(course, "saw")) {
    for (int n = 0; n < 30; n++) {
      give_back(all, bytes / 3);
      for (size_t at = 0; at < bytes / 3; at += MIB) touch(all + at, MIB), usleep(300);
    }
    give_back(all, bytes / 6);
  } else {
    return 2;
  }
  return 0;
}
