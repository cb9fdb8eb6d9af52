/* Blocks whose addresses only the kernel has: as data of epoll's descriptors, as values of timers, and as
 * alternate signal stacks of the usual size. No copy of an address is left in memory.
 *
 *   kernel_pointers EPOLL TIMERS
 *
 * Prints the numbers of blocks that it gave to each, and obeys 'q'.
 */
#include "subject.h"
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* Writes over what calls have left on the stack and in the registers of arguments. */
static __attribute__((noinline)) void wipe(void) {
  volatile char room[1 << 14];
  for (size_t i = 0; i < sizeof room; i++) room[i] = 0;
  syscall(SYS_getppid, 0, 0, 0, 0, 0, 0);
}

static __attribute__((noinline)) void add_to_epoll(int epoll) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = malloc(5000)};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd(0, 0), &event)) _exit(3);
  event.data.ptr = 0;
  opaque(&event);
}

static __attribute__((noinline)) void add_timer(void) {
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
  timer_t timer;
  event.sigev_value.sival_ptr = malloc(3000);
  if (timer_create(CLOCK_MONOTONIC, &event, &timer)) _exit(3);
  event.sigev_value.sival_ptr = 0;
  opaque(&event);
}

static void ignore(int number) { (void)number; }

static __attribute__((noinline)) void set_signal_stack(void) {
  struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_ONSTACK};
  stack_t stack = {.ss_size = SIGSTKSZ};
  if (sigaction(SIGUSR1, &action, 0)) _exit(3);
  stack.ss_sp = malloc(stack.ss_size);
  if (sigaltstack(&stack, 0)) _exit(3);
  stack.ss_sp = 0;
  opaque(&stack);
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  int epoll = epoll_create1(0), epolls = atoi(arguments[1]), timers = atoi(arguments[2]);
  for (int i = 0; i < epolls; i++) add_to_epoll(epoll);
  for (int i = 0; i < timers; i++) add_timer();
  set_signal_stack();
  wipe();
  line_open();
  line_number("epoll", (uint64_t)epolls);
  line_number("timers", (uint64_t)timers);
  line_print();
  hold_until_quit();
}
