/* A program that sends no mark. Its memory takes a known course and falls as it ends, like that of
 * an interpreter that frees its objects at exit.
 *
 *   holder COURSE MEBIBYTES [RECORDING]
 *
 * hold   fills memory, frees nearly all of it around small live blocks, holds that level, frees the
 *        small blocks too, releases everything to the kernel and ends: another allocator could have
 *        kept less
 * keep   fills memory and ends
 * steps  holds all memory, then half of it, then releases that in four steps without a pause, ends
 *
 * It holds a level until the file RECORDING has grown three times: the recorder took the samples of
 * the second and third growth on that level.
 */
#include "subject.h"

#include <sched.h>

enum { LARGE = 100000, SMALL = 500, GROWTHS = 3, PATIENCE_S = 600 };

static size_t bytes;
static const char *recording;

/* Takes precedence over other processes where the kernel allows it: a wait for a processor between
 * two levels would itself be a level. */
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
