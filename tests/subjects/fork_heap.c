/* Forks without end, and frees blocks of 512 KiB between forks, so that its heap has pages to
 * release. Each child allocates, checks its block and exits with 7. 'c' prints how many children
 * ended and how many with another status.
 */
#include "subject.h"

#include <sys/wait.h>

enum { BLOCKS = 8, BYTES = 512 << 10 };

static _Atomic uint64_t ended, wrong;

static void use_blocks(void) {
  char *blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) {
    if (!(blocks[i] = malloc(BYTES))) _exit(3);
    memset(opaque(blocks[i]), 1, BYTES);
  }
  for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

static void *fork_on(void *unused) {
  (void)unused;
  for (;;) {
    use_blocks();
    pid_t child = fork();
    if (child == 0) {
      char *block = malloc(5000);
      if (!block) _exit(8);
      memset(block, 1, 5000);
      _exit(opaque(block) ? 7 : 8);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
      atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&ended, 1);
  }
  return 0;
}

int main(void) {
  pthread_t id;
  if (pthread_create(&id, 0, fork_on, 0)) return 3;
  while (atomic_load(&ended) < 3) usleep(1000);
  line_open();
  line_number("threads", 2);
  line_print();
  answer_counts("ended", &ended, &wrong);
}
