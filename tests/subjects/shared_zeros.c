/* Has 32 MiB of zeros that it shares with three children, 8 MiB of its own, and free heap memory of
 * which half is zeros. */
#include "subject.h"

#include <signal.h>
#include <sys/prctl.h>

enum { CHILDREN = 3, SHARED = 32 << 20, OWN = 8 << 20, BLOCKS = 200, BYTES = 100000 };

/* Writes zeros, so that they are resident. */
static void zeros(size_t bytes) {
  char *pages = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) _exit(3);
  memset(opaque(pages), 1, bytes);
  memset(opaque(pages), 0, bytes);
}

int main(void) {
  zeros(SHARED);
  for (int i = 0; i < CHILDREN; i++) {
    pid_t child = fork();
    if (child < 0) return 3;
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) pause();
    }
  }
  zeros(OWN);
  static char *blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) {
    if (!(blocks[i] = malloc(BYTES))) return 3;
    memset(opaque(blocks[i]), 1, BYTES);
    if (i % 2) memset(opaque(blocks[i]), 0, BYTES);
  }
  for (int i = 0; i < BLOCKS - 1; i++) free(blocks[i]);
  line_open();
  line_number("shared", SHARED);
  line_number("own", OWN);
  line_number("others", CHILDREN);
  line_print();
  hold_until_quit();
}
