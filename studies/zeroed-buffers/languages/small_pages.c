/* Becomes COMMAND, to which the kernel gives no huge pages: small_pages COMMAND… Where huge pages are given to everybody
 * (/sys/kernel/mm/transparent_hugepage/enabled is `always`), the first byte that is written may make two megabytes resident,
 * and a lazy buffer look eager. Linux 3.15; before, and where it is refused, COMMAND runs as it would. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **values) {
  if (count < 2) return 2;
  prctl(PR_SET_THP_DISABLE, 1UL, 0UL, 0UL, 0UL);
  execvp(values[1], values + 1);
  perror(values[1]);
  return 127;
}
