/* Fills its argument's number of MiB of heap, frees every other block and forks: both processes
 * share the pages. Prints "child", the child's id. */
#include "subject.h"

#include <sys/prctl.h>
#include <signal.h>

int main(int count, char **arguments) {
  size_t blocks = (size_t)atoi(count > 1 ? arguments[1] : "40") << 10;
  char **all = malloc(blocks * sizeof *all);
  if (!all) return 3;
  for (size_t i = 0; i < blocks; i++) {
    if (!(all[i] = malloc(1000))) return 3;
    memset(all[i], i % 3 ? 1 : 0, 1000);
  }
  for (size_t i = 0; i < blocks; i += 2) free(all[i]);
  pid_t child = fork();
  if (child < 0) return 3;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  line_open();
  line_number("child", (uint64_t)child);
  line_print();
  /* Not stdio: its malloc would sort the free blocks and thereby write to them. */
  char byte;
  while (read(0, &byte, 1) > 0 && byte != 'q') continue;
  kill(child, SIGKILL);
  return 0;
}
