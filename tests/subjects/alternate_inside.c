/* Handles a signal on an alternate stack that lies in the middle of its own stack. The interrupted
 * frames lie below it, so that bytes below the stack pointer are in use. The handler does not block
 * the signal. 'c' prints how many bytes of those frames have changed; 'q' ends.
 */
#include "subject.h"

#include <signal.h>

#define FRAMES 16
#define FRAME_BYTES 4096
static volatile unsigned char *frames[FRAMES];

static void handle(int signal) {
  (void)signal;
  line_open();
  line_print();
  while (next_command() != 'q') {
    uint64_t wrong = 0;
    for (int i = 0; i < FRAMES; i++)
      for (int at = 0; at < FRAME_BYTES; at++) wrong += frames[i][at] != (unsigned char)(at + i);
    line_open();
    line_number("wrong", wrong);
    line_print();
  }
  _exit(0);
}

static __attribute__((noinline)) void go_down(int depth) {
  volatile unsigned char frame[FRAME_BYTES];
  for (int at = 0; at < FRAME_BYTES; at++) frame[at] = (unsigned char)(at + depth);
  frames[depth] = frame;
  if (depth + 1 < FRAMES) go_down(depth + 1);
  else raise(SIGUSR1);
  frames[depth] = 0;
}

int main(void) {
  char room[16384];
  stack_t alternate = {.ss_sp = room, .ss_size = sizeof room};
  struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK | SA_NODEFER};
  if (sigaltstack(&alternate, 0) || sigaction(SIGUSR1, &action, 0)) return 3;
  /* Free memory that malloc_trim can release. */
  static char *blocks[2000];
  for (int i = 0; i < 2000; i++) blocks[i] = memset(opaque(malloc(4000)), 1, 4000);
  for (int i = 0; i < 2000; i++)
    if (i % 20) free(blocks[i]);
  go_down(0);
  return 4;
}
