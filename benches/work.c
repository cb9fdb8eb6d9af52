/* Work whose own processor time is known to the microsecond.
 *
 *   work cpu|alloc|forks|wake|echo SECONDS [PROGRAM]
 *
 * Prints what it took: user and system time of itself and of its children, and its wall time, in
 * microseconds. "forks" starts PROGRAM a thousand times a second; "wake" does nothing but wake up as often,
 * what nobody who samples as often can do without; "echo" prints the median microseconds of a line and its answer
 * between two processes, what no mark can do without.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
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
  enum { SLOTS = 1024 }; /* within the processor's cache: main memory is shared with others */
  static char *slots[SLOTS];
  uint64_t x = 88172645463325252u;
  for (uint64_t i = 0; i < rounds; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    char **slot = &slots[x % SLOTS];
    size_t size = 16 + (x >> 20) % 1024;
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

static void wake(uint64_t count) {
  struct timespec pause = {0, 1000000};
  for (uint64_t i = 0; i < count; i++) ppoll(0, 0, &pause, 0);
}

static int ascending(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static uint64_t echo(void) {
  enum { TURNS = 2000 };
  static uint64_t times[TURNS];
  int pair[2];
  char byte;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(3);
  if (fork() == 0) {
    close(pair[0]);
    char line[64];
    while (read(pair[1], line, sizeof line) > 0)
      if (write(pair[1], "\n", 1) != 1) break;
    _exit(0);
  }
  close(pair[1]);
  for (int i = 0; i < TURNS; i++) {
    uint64_t start = now_us();
    if (write(pair[0], "mark\n", 5) != 5 || read(pair[0], &byte, 1) != 1) exit(3);
    times[i] = now_us() - start;
  }
  qsort(times, TURNS, sizeof *times, ascending);
  return times[TURNS / 2];
}

int main(int count, char **values) {
  if (count < 3) return 2;
  uint64_t start = now_us(), amount = strtoull(values[2], 0, 10);
  if (!strcmp(values[1], "cpu")) compute(amount * 500000000u);
  else if (!strcmp(values[1], "alloc")) allocate(amount * 12000000u);
  else if (!strcmp(values[1], "forks") && count > 3) start_programs(amount * 1000, values[3]);
  else if (!strcmp(values[1], "wake")) wake(amount * 1000);
  else if (!strcmp(values[1], "echo")) return printf("%llu 0\n", (unsigned long long)echo()) < 0;
  else return 2;
  printf("%llu %llu\n", (unsigned long long)(taken_us(RUSAGE_SELF) + taken_us(RUSAGE_CHILDREN)),
         (unsigned long long)(now_us() - start));
  return 0;
}
