/* Threads that each make one large transfer, which cannot continue until 'd': a stop would cut it
 * short. 'd' lets all transfers finish and prints what each call returned. With "busy" one more
 * thread works all the time. With "producer" one thread writes repeatedly to a child that reads
 * slowly; 'c' prints how many writes there were and how many were short.
 */
#include "subject.h"

#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define BYTES (1 << 20)
#define CALLS(X) X(write) X(writev) X(send) X(sendmsg) X(sendfile) X(recv)

#include "calls.h"

static char data[BYTES], drain[BYTES];
static int ends[call_count][2];
static _Atomic long returned[call_count];
static _Atomic pid_t threads[call_count];
static _Atomic uint64_t works, writes, shorts;

static long once(enum call call, int end) {
  struct iovec halves[2] = {{data, BYTES / 2}, {data + BYTES / 2, BYTES / 2}};
  struct msghdr message = {.msg_iov = halves, .msg_iovlen = 2};
  int file;
  switch (call) {
    case call_write: return write(end, data, BYTES);
    case call_writev: return writev(end, halves, 2);
    case call_send: return send(end, data, BYTES, 0);
    case call_sendmsg: return sendmsg(end, &message, 0);
    case call_sendfile:
      file = memfd_create("data", MFD_CLOEXEC);
      if (file < 0 || write(file, data, BYTES) != BYTES || lseek(file, 0, SEEK_SET)) return -2;
      return sendfile(end, file, 0, BYTES);
    case call_recv: return recv(end, drain, BYTES, MSG_WAITALL);
    default: return -3;
  }
}

static void *transfer(void *argument_) {
  enum call call = (enum call)(uintptr_t)argument_;
  atomic_store(&threads[call], (pid_t)syscall(SYS_gettid));
  long result = once(call, ends[call][1]);
  atomic_store(&returned[call], result < 0 ? -errno : result);
  atomic_store(&threads[call], -1);
  park();
  return 0;
}

static void *work(void *unused) {
  (void)unused;
  for (;;) {
    atomic_fetch_add(&works, 1);
    free(opaque(malloc(100)));
  }
  return 0;
}

/* Finishes the transfer of one thread: reads what it sends, or sends what it waits for. */
static void let_go(enum call call) {
  static char taken[BYTES];
  while (atomic_load(&threads[call]) != -1) {
    if (call == call_recv) {
      if (write(ends[call][0], data, BYTES - BYTES / 16) < 0) _exit(4);
      while (atomic_load(&threads[call]) != -1) usleep(1000);
    } else {
      if (read(ends[call][0], taken, BYTES) <= 0) usleep(1000);
    }
  }
}

static void *produce(void *unused) {
  (void)unused;
  for (;;) {
    ssize_t put = write(ends[0][1], data, BYTES);
    if (put != BYTES) atomic_fetch_add(&shorts, 1);
    atomic_fetch_add(&writes, 1);
  }
  return 0;
}

static void producer(void) {
  pthread_t id;
  if (pipe(ends[0])) _exit(3);
  pid_t reader = fork();
  if (reader == 0) {
    close(ends[0][1]);
    while (read(ends[0][0], drain, 4096) > 0) usleep(200);
    _exit(0);
  }
  if (reader < 0 || pthread_create(&id, 0, produce, 0)) _exit(3);
  line_open();
  line_print();
  while (next_command() != 'q') {
    line_open();
    line_number("writes", atomic_load(&writes));
    line_number("shorts", atomic_load(&shorts));
    line_print();
  }
  _exit(0);
}

int main(int count, char **values) {
  pthread_t id;
  if (count > 1 && !strcmp(values[1], "producer")) producer();
  for (int i = 0; i < call_count; i++) {
    int made = i == call_write || i == call_writev ? pipe(ends[i]) : socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]);
    if (made || (i != call_recv && fcntl(ends[i][0], F_SETFL, O_NONBLOCK)) || (i == call_recv && write(ends[i][0], data, BYTES / 16) != BYTES / 16)) return 3;
    if (pthread_create(&id, 0, transfer, (void *)(uintptr_t)i)) return 3;
    while (!atomic_load(&threads[i]) || !is_in_call(atomic_load(&threads[i]))) usleep(1000);
  }
  if (count > 1 && pthread_create(&id, 0, work, 0)) return 3;
  line_open();
  line_print();
  while (next_command() != 'q') {
    for (int i = 0; i < call_count; i++) let_go(i);
    line_open();
    for (int i = 0; i < call_count; i++) line_number(names[i], (uint64_t)atomic_load(&returned[i]));
    line_print();
  }
  _exit(0);
}
