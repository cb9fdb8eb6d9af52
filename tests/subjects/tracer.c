/* Makes a process that has a tracer: forks a child that waits, seizes it, and
 * prints the child's id.
 */
#include "subject.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

int main(void) {
  pid_t child = fork();
  if (child < 0) return 3;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    park();
  }
  if (ptrace(PTRACE_SEIZE, child, 0, 0)) {
    kill(child, SIGKILL);
    return 3;
  }
  line_open();
  line_number("child", (uint64_t)child);
  line_print();
  while (next_command() != 'q') continue;
  kill(child, SIGKILL);
  return 0;
}
