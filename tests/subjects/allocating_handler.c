/* The first thread waits in read(2) while another sends it SIGUSR1 without pause. The handler
 * allocates from malloc, which POSIX allows here (2.4.3: it interrupts no unsafe function); it
 * restarts system calls and blocks all signals. Each command prints the number of handled signals.
 */
#include "subject.h"

#include <signal.h>

enum { BLOCKS = 2000, BYTES = 20000 };

static _Atomic uint64_t handled, wrong;
static pthread_t first;

static void on_usr1(int signal) {
  (void)signal;
  char *small = malloc(3000), *large = malloc(100000);
  if (!small || !large) {
    atomic_fetch_add(&wrong, 1);
    return;
  }
  *small = *large = 1;
  free(opaque(small));
  free(opaque(large));
  atomic_fetch_add(&handled, 1);
}

static void *send_on(void *unused) {
  for (;;) {
    pthread_kill(first, SIGUSR1);
    usleep(100);
  }
  return unused;
}

int main(void) {
  static char *blocks[BLOCKS];
  if (!mallopt(M_ARENA_MAX, 1) || !mallopt(M_MMAP_THRESHOLD, 1 << 26)) return 3;
  for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
  for (int i = 0; i < BLOCKS; i += 2) free(blocks[i]);
  first = pthread_self();
  struct sigaction action = {.sa_handler = on_usr1, .sa_flags = SA_RESTART};
  sigfillset(&action.sa_mask);
  sigset_t all, none;
  sigfillset(&all);
  pthread_t id;
  if (sigaction(SIGUSR1, &action, 0) || pthread_sigmask(SIG_BLOCK, &all, &none)) return 3;
  if (pthread_create(&id, 0, send_on, 0) || pthread_sigmask(SIG_SETMASK, &none, 0)) return 3;
  while (atomic_load(&handled) < 10) usleep(1000);
  if (write(1, "ready\n", 6) != 6) return 3;
  answer_counts("handled", &handled, &wrong);
}
