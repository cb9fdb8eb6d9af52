/* Work whose own processor time is known to the microsecond.
 *
 *   work cpu|alloc|forks|idle SECONDS [PROGRAM]
 *
 * Prints what it took: user and system time of itself and of its children, and its wall time, in
 * microseconds. "forks" starts PROGRAM a thousand times a second.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t taken_us(int who) {
  struct rusage usage;
  getrusage(who, &usage);
  return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
         (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* A fixed amount of work, so that its time can be compared. */
static void compute(uint64_t rounds) {
  volatile uint64_t sink = 0;
  uint64_t x = 88172645463325252u;
  for (uint64_t i = 0; i < rounds; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    sink += x;
  }
}

static void allocate(uint64_t rounds) {
  enum { SLOTS = 4096 };
  static char *slots[SLOTS];
  uint64_t x = 88172645463325252u;
  for (uint64_t i = 0; i < rounds; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    char **slot = &slots[x % SLOTS];
    size_t size = 16 + (x >> 20) % 8192;
    free(*slot);
    *slot = malloc(size);
    if (!*slot) exit(3);
    memset(*slot, 1, size);
  }
}

static void start_programs(uint64_t count, char *program) {
  uint64_t start = now_us();
  char *arguments[] = {program, 0};
  for (uint64_t i = 0; i < count; i++) {
    pid_t child = fork();
    if (child == 0) {
      execv(program, arguments);
      _exit(127);
    }
    if (child < 0) exit(3);
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) exit(4);
    uint64_t due = start + (i + 1) * 1000, at = now_us();
    if (at < due) usleep((useconds_t)(due - at));
  }
}

int main(int count, char **values) {
  if (count < 3) return 2;
  uint64_t start = now_us(), amount = strtoull(values[2], 0, 10);
  if (!strcmp(values[1], "cpu")) compute(amount * 500000000u);
  else if (!strcmp(values[1], "alloc")) allocate(amount * 2000000u);
  else if (!strcmp(values[1], "forks") && count > 3) start_programs(amount * 1000, values[3]);
  else if (!strcmp(values[1], "idle")) sleep((unsigned)amount);
  else return 2;
  printf("%llu %llu\n", (unsigned long long)(taken_us(RUSAGE_SELF) + taken_us(RUSAGE_CHILDREN)),
         (unsigned long long)(now_us() - start));
  return 0;
}
