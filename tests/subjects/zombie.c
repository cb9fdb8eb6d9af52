/* Makes a zombie: a child that has ended and for which it does not wait; prints its id. */
#include "subject.h"

#include <sys/wait.h>

int main(void) {
  pid_t child = fork();
  if (child < 0) return 3;
  if (child == 0) _exit(0);
  /* WNOWAIT leaves the zombie. */
  siginfo_t info;
  if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT)) return 3;
  line_open();
  line_number("child", (uint64_t)child);
  line_print();
  hold_until_quit();
}
