/* The program that tests of the lab run. The first argument selects the behaviour (see `main`). It
 * prints its own peak sizes, from which tests know where a limit must fail.
 */
#include "subject.h"

#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/wait.h>

#define MIB (UINT64_C(1) << 20)

/* A field of /proc/self/status in bytes, without touching the heap. */
static uint64_t status_field(const char *field) {
  static char text[8192];
  int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (got < 0) _exit(92);
  close(file);
  text[got] = 0;
  const char *at = strstr(text, field);
  return at ? strtoull(at + strlen(field), 0, 10) * 1024 : 0;
}

/* Maps and locks its own executable, so that the kernel drops no page of the file, and prints a
 * line. */
static int pin(void) {
  int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  off_t length = file < 0 ? -1 : lseek(file, 0, SEEK_END);
  if (length <= 0) return 91;
  void *all = mmap(0, (size_t)length, PROT_READ, MAP_SHARED, file, 0);
  if (all == MAP_FAILED || mlock(all, (size_t)length) || mlockall(MCL_CURRENT)) return 91;
  line_open();
  line_print();
  hold_until_quit();
  return 0;
}

/* Allocates `mebibytes` and touches each page; `otherwise` selects what it does when malloc fails.
 */
static int need(uint64_t mebibytes, const char *otherwise) {
  volatile char *block = malloc(mebibytes * MIB);
  if (!block) {
    static const char complaint[] = "lab: out of memory\n\033[2Jcleared?\n";
    if (write(2, complaint, sizeof complaint - 1) < 0) return 91;
    if (!strcmp(otherwise, "hang")) {
      signal(SIGTERM, SIG_IGN);
      for (;;) pause();
    }
    if (!strcmp(otherwise, "abort")) abort();
    if (!strcmp(otherwise, "succeed")) return 0;
    return 3;
  }
  for (uint64_t at = 0; at < mebibytes * MIB; at += 4096) block[at] = 1;
  line_open();
  line_number("VmPeak", status_field("VmPeak:"));
  line_number("VmData", status_field("VmData:"));
  line_number("VmHWM", status_field("VmHWM:"));
  line_print();
  return 0;
}

/* Counts its runs in a file, and needs `more` MiB more in every other one. */
static int alternate(const char *path, uint64_t mebibytes, uint64_t more) {
  int file = open(path, O_RDWR | O_CREAT, 0600);
  char turn = 0;
  if (file < 0 || flock(file, LOCK_EX) || read(file, &turn, 1) < 0) return 91;
  turn = turn == '1' ? '0' : '1';
  if (pwrite(file, &turn, 1, 0) != 1) return 91;
  return need(mebibytes + (turn == '1' ? more : 0), "exit");
}

/* Computes for `count` thousand turns. */
static int work(uint64_t count) {
  volatile uint64_t sum = 0;
  for (uint64_t turn = 0; turn < count * 1000; turn++) sum += turn;
  return 0;
}

/* Leaves a process in another session whose parent has ended and which ignores all signals that it
 * can. */
static int daemonize(const char *seconds) {
  pid_t child = fork();
  if (child > 0) return waitpid(child, 0, 0) < 0;
  if (child < 0 || setsid() < 0) _exit(91);
  if (fork()) _exit(0);
  for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
  execlp("sleep", "sleep", seconds, (char *)0);
  _exit(91);
}

int main(int count, char **words) {
  const char *what = count > 1 ? words[1] : "";
  const char *first = count > 2 ? words[2] : "0";
  const char *second = count > 3 ? words[3] : "";
  const char *third = count > 4 ? words[4] : "0";
  if (!strcmp(what, "need")) return need(strtoull(first, 0, 10), second);
  if (!strcmp(what, "alternate")) return alternate(first, strtoull(second, 0, 10), strtoull(third, 0, 10));
  if (!strcmp(what, "work")) return work(strtoull(first, 0, 10));
  if (!strcmp(what, "daemon")) return daemonize(first);
  if (!strcmp(what, "pin")) return pin();
  return 90;
}
