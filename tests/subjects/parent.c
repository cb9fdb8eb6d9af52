/* Forks and waits for any child, writes to its heap without end, and handles SIGINT. It counts as
 * wrong: a child that it did not make, a handler that runs in another process, and a byte of its
 * heap that it did not write. 'c' prints how many children ended and how many results were wrong.
 *
 * parent [dont|wipe]: keeps one of its blocks of 1 MiB from its children (MADV_DONTFORK,
 * MADV_WIPEONFORK).
 */
#include "subject.h"

#include <signal.h>
#include <sys/wait.h>

enum { BLOCKS = 20000, BLOCK_BYTES = 1000 };

struct shared {
  _Atomic uint64_t ended, wrong;
};

static struct shared *shared;
static pid_t own;
static unsigned char *blocks[BLOCKS];

static void on_interrupt(int signal) {
  (void)signal;
  if (getpid() != own) atomic_fetch_add(&shared->wrong, 1);
}

static void *fork_on(void *unused) {
  (void)unused;
  for (uint8_t code = 1;; code++) {
    pid_t child = fork();
    if (child == 0) {
      own = getpid();
      usleep(200);
      _exit(code);
    }
    int status = 0;
    pid_t ended = child > 0 ? waitpid(-1, &status, 0) : -1;
    if (ended != child || !WIFEXITED(status) || WEXITSTATUS(status) != code) atomic_fetch_add(&shared->wrong, 1);
    atomic_fetch_add(&shared->ended, 1);
  }
  return 0;
}

static void *write_on(void *unused) {
  (void)unused;
  for (unsigned char turn = 1;; turn++)
    for (int i = 0; i < BLOCKS; i++) {
      unsigned char before = (unsigned char)(turn - 1);
      if (blocks[i][0] != before || blocks[i][BLOCK_BYTES - 1] != before) atomic_fetch_add(&shared->wrong, 1);
      memset(blocks[i], turn, BLOCK_BYTES);
      if (i % 500 == 0) usleep(200);
    }
  return 0;
}

int main(int count, char **values) {
  own = getpid();
  shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 3;
  for (int i = 0; i < BLOCKS; i++)
    if (!(blocks[i] = calloc(1, BLOCK_BYTES))) return 3;
  if (count > 1) {
    char *large = malloc(1 << 20);
    if (!large) return 3;
    memset(large, 7, 1 << 20);
    /* The pages of its mapping, and the chunk's header with them. */
    char *start = (char *)((uintptr_t)large & ~(uintptr_t)4095);
    if (madvise(start, 1 << 20, strcmp(values[1], "dont") ? MADV_WIPEONFORK : MADV_DONTFORK)) return 3;
  }
  struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
  sigaction(SIGINT, &action, 0);
  pthread_t id;
  if (pthread_create(&id, 0, fork_on, 0) || pthread_create(&id, 0, write_on, 0)) return 3;
  while (atomic_load(&shared->ended) < 3) usleep(1000);
  line_open();
  line_number("threads", 3);
  line_print();
  answer_counts("ended", &shared->ended, &shared->wrong);
}
