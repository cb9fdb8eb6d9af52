/* Blocks in a read while an old copy of a `struct sigaction`, with the address that handlers return to, is
 * on the stack above its stack pointer.
 *
 *   stale_return
 *
 * Allocates, prints the number of blocks, and obeys 'q'.
 */
#include "subject.h"
#include <signal.h>

static void *volatile kept[1000];

/* Leaves the copy that sigaction(2) makes for the kernel below the caller's frame. */
static __attribute__((noinline)) void set_action(void) {
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigaction(SIGUSR1, &action, NULL);
}

/* Waits within a frame that contains the copy and does not write over it. */
static __attribute__((noinline)) void wait_in_large_frame(void) {
  char room[1 << 12];
  opaque(room);
  hold_until_quit();
}

int main(void) {
  for (int i = 0; i < 1000; i++) kept[i] = malloc(100);
  line_open();
  line_number("blocks", 1000);
  line_print();
  set_action();
  wait_in_large_frame();
}
