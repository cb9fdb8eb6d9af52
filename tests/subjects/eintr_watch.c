/* A thread for each blocking system call counts the EINTRs that it gets. Each EINTR is
 * an error: the process has no signal handler. 'c' prints the counts by call. Half of
 * the calls wait without a timeout; the others repeat a wait with one.
 */
#include "subject.h"

#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define CALLS(X)                                                                        \
  X(epoll_wait) X(epoll_wait_timed) X(sigtimedwait) X(sigwaitinfo) X(semop) X(semtimedop) \
  X(poll) X(poll_timed) X(select) X(select_timed) X(nanosleep) X(clock_nanosleep)       \
  X(read_pipe) X(recv_timed) X(futex) X(futex_timed) X(condition_timed) X(msgrcv) X(read_timer) \
  X(accept) X(accept_timed) X(read_terminal) X(io_getevents)

#include "calls.h"

static _Atomic uint64_t interrupted[call_count], returned[call_count];
static _Atomic pid_t watchers[call_count];
static int never_readable[2], sockets[2], listeners[2], terminal = -1, epoll, semaphores, messages;
static aio_context_t never_completed;
static sigset_t waited_for;

static long once(enum call call, int *word) {
  struct timespec brief = {0, 30 * 1000 * 1000};
  struct pollfd polled = {never_readable[0], POLLIN, 0};
  struct epoll_event event;
  struct sembuf take = {0, -1, 0};
  struct timeval brief_too = {0, 30000};
  struct {
    long type;
    char text[8];
  } message;
  char bytes[8];
  struct io_event completed;
  fd_set set;
  FD_ZERO(&set);
  FD_SET(never_readable[0], &set);
  switch (call) {
    case call_epoll_wait: return epoll_wait(epoll, &event, 1, -1);
    case call_epoll_wait_timed: return epoll_wait(epoll, &event, 1, 30);
    case call_sigtimedwait: return sigtimedwait(&waited_for, 0, &brief);
    case call_sigwaitinfo: return sigwaitinfo(&waited_for, 0);
    case call_semop: return semop(semaphores, &take, 1);
    case call_semtimedop: return semtimedop(semaphores, &take, 1, &brief);
    case call_poll: return poll(&polled, 1, -1);
    case call_poll_timed: return poll(&polled, 1, 30);
    case call_select: return select(never_readable[0] + 1, &set, 0, 0, 0);
    case call_select_timed: return select(never_readable[0] + 1, &set, 0, 0, &brief_too);
    case call_nanosleep: return nanosleep(&brief, 0);
    case call_clock_nanosleep:
      /* returns the error number */
      errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &brief, 0);
      return errno ? -1 : 0;
    case call_read_pipe: return read(never_readable[0], bytes, 1);
    case call_recv_timed: return recv(sockets[0], bytes, 1, 0);
    case call_futex: return syscall(SYS_futex, word, FUTEX_WAIT, 0, 0, 0, 0);
    case call_futex_timed: return syscall(SYS_futex, word, FUTEX_WAIT, 0, &brief, 0, 0);
    case call_msgrcv: return msgrcv(messages, &message, sizeof message.text, 0, 0);
    case call_accept: return accept(listeners[0], 0, 0);
    case call_accept_timed: return accept(listeners[1], 0, 0);
    case call_read_terminal: return read(terminal, bytes, sizeof bytes);
    case call_io_getevents: return syscall(SYS_io_getevents, never_completed, 1, 1, &completed, 0);
    default: return 0;
  }
}

static void wait_condition(void) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 30 * 1000 * 1000;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    until.tv_sec++;
  }
  pthread_mutex_lock(&mutex);
  if (pthread_cond_timedwait(&condition, &mutex, &until) == EINTR) atomic_fetch_add(&interrupted[call_condition_timed], 1);
  pthread_mutex_unlock(&mutex);
}

static void *watch(void *argument_) {
  enum call call = (enum call)(uintptr_t)argument_;
  int word = 0, timer = -1;
  uint64_t expirations;
  if (call == call_read_timer) {
    struct itimerspec every = {{0, 30000000}, {0, 30000000}};
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    timerfd_settime(timer, 0, &every, 0);
  }
  atomic_store(&watchers[call], (pid_t)syscall(SYS_gettid));
  for (;;) {
    if (call == call_condition_timed) {
      wait_condition();
    } else if (call == call_read_timer) {
      if (read(timer, &expirations, sizeof expirations) < 0 && errno == EINTR) atomic_fetch_add(&interrupted[call], 1);
    } else if (once(call, &word) < 0 && errno == EINTR) {
      atomic_fetch_add(&interrupted[call], 1);
    }
    atomic_fetch_add(&returned[call], 1);
  }
  return 0;
}

/* A listening TCP socket on the loopback address to which no process connects. */
static int listener(void) {
  struct sockaddr_in any_port = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int made = socket(AF_INET, SOCK_STREAM, 0);
  return made < 0 || bind(made, (struct sockaddr *)&any_port, sizeof any_port) || listen(made, 1) ? -1 : made;
}

/* A terminal on which nothing is typed; -1 if the machine has none. */
static int open_terminal(void) {
  int controller = posix_openpt(O_RDWR | O_NOCTTY);
  if (controller < 0 || grantpt(controller) || unlockpt(controller)) return -1;
  return open(ptsname(controller), O_RDWR | O_NOCTTY);
}

/* Whether the kernel or the machine lacks what a call needs. */
static int is_missing(enum call call) {
  switch (call) {
    case call_semop:
    case call_semtimedop: return semaphores < 0;
    case call_msgrcv: return messages < 0;
    case call_read_terminal: return terminal < 0;
    case call_io_getevents: return !never_completed;
    default: return 0;
  }
}

static void report(void) {
  uint64_t total = 0, returns = 0;
  line_open();
  line_object("interrupted");
  for (int i = 0; i < call_count; i++) {
    line_number(names[i], atomic_load(&interrupted[i]));
    total += atomic_load(&interrupted[i]);
    returns += atomic_load(&returned[i]);
  }
  line_end_object();
  line_number("total", total);
  line_number("returns", returns);
  line_print();
}

int main(void) {
  struct timeval brief = {0, 30000};
  struct epoll_event event = {EPOLLIN, {0}};
  sigemptyset(&waited_for);
  sigaddset(&waited_for, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &waited_for, 0);
  epoll = epoll_create1(EPOLL_CLOEXEC);
  semaphores = semget(IPC_PRIVATE, 1, 0600 | IPC_CREAT);
  messages = msgget(IPC_PRIVATE, 0600 | IPC_CREAT);
  if (pipe(never_readable) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || epoll < 0) return 3;
  setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
  if ((listeners[0] = listener()) < 0 || (listeners[1] = listener()) < 0) return 3;
  setsockopt(listeners[1], SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
  terminal = open_terminal();
  if (syscall(SYS_io_setup, 1, &never_completed)) never_completed = 0;
  epoll_ctl(epoll, EPOLL_CTL_ADD, never_readable[0], &event);
  unsigned started = 0;
  for (int i = 0; i < call_count; i++) {
    pthread_t id;
    if (is_missing(i)) continue;
    if (pthread_create(&id, 0, watch, (void *)(uintptr_t)i)) return 3;
    started++;
    while (!atomic_load(&watchers[i]) || !is_in_call(atomic_load(&watchers[i]))) usleep(1000);
  }
  line_open();
  line_number("threads", started + 1);
  line_print();
  for (;;) {
    char command = next_command();
    if (command == 'c' || command == 'q') report();
    if (command == 'q') {
      if (semaphores >= 0) semctl(semaphores, 0, IPC_RMID);
      if (messages >= 0) msgctl(messages, IPC_RMID, 0);
      _exit(0);
    }
  }
}
