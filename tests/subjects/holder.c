/* A program that tells no mark, whose memory takes a known course and falls as it ends, as an interpreter's does that
 * tears itself down.
 *
 *   holder COURSE MEBIBYTES [RECORDING]
 *
 * hold   fills memory, drops nearly all of it around small blocks that stay, holds what is left, drops those too
 *        and gives everything back to the kernel, and ends: what glibc kept, another allocator need not have kept
 * keep   fills memory, ends
 * steps  holds the whole, then half of it, then gives that back in four steps at once, ends
 *
 * It holds a level until whoever records it has written down samples of it: until the file RECORDING has grown three times.
 * What the second and the third time bring was sampled on the level.
 */
#include "subject.h"

#include <sched.h>

enum { LARGE = 100000, SMALL = 500, GROWTHS = 3, PATIENCE_S = 600 };

static size_t bytes;
static const char *recording;

/* Lets nothing else run before it, where the kernel allows that: to wait for a processor between two levels would be to hold
 * another one. */
static void hurry(void) {
  struct sched_param first = {.sched_priority = 1};
  (void)sched_setscheduler(0, SCHED_FIFO, &first);
}

static void hold_level(void) {
  struct sched_param none = {.sched_priority = 0};
  (void)sched_setscheduler(0, SCHED_OTHER, &none);
  await_growths(recording, GROWTHS);
  hurry();
}

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

static void give_back(char *from, size_t length) { madvise(from, length, MADV_DONTNEED); }

int main(int count, char **values) {
  if (count < 3) return 2;
  const char *course = values[1];
  bytes = strtoull(values[2], 0, 0) << 20;
  recording = count > 3 ? values[3] : "";
  alarm(PATIENCE_S);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  hurry();
  if (!strcmp(course, "hold")) {
    size_t kept;
    char **small = hold_pinned(&kept);
    hold_level();
    for (size_t i = 0; i < kept; i++) free(small[i]);
    free(small);
    malloc_trim(0);
    return 0;
  }
  char *all = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return 3;
  memset(all, 1, bytes);
  if (!strcmp(course, "keep")) return 0;
  if (strcmp(course, "steps")) return 2;
  hold_level();
  give_back(all, bytes / 2);
  hold_level();
  for (int n = 4; n < 8; n++) give_back(all + bytes / 8 * n, bytes / 8);
  return 0;
}
