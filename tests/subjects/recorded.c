/* The program that tests of recordings record. The first argument selects the behaviour (see
 * `main`). It sends marks by the protocol itself, without a probe: it writes the name and reads one
 * byte.
 */
#include "subject.h"

#include <signal.h>
#include <sys/epoll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MIB (UINT64_C(1) << 20)

static int mark_socket = -1;

static void find_socket(void) {
  const char *number = getenv("STRANDLINE_MARK_FD");
  if (number) mark_socket = atoi(number);
}

/* Sends bytes to the recorder unchanged. */
static int send_bytes(const char *bytes, size_t length) {
  size_t done = 0;
  while (done < length) {
    ssize_t put = send(mark_socket, bytes + done, length - done, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return 0;
    done += (size_t)put;
  }
  return 1;
}

static int await_answer(void) {
  char byte;
  for (;;) {
    ssize_t got = recv(mark_socket, &byte, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    return got == 1;
  }
}

static int mark(const char *name) {
  char line[256];
  if (mark_socket < 0) return 0;
  size_t length = strlen(name);
  memcpy(line, name, length);
  line[length] = '\n';
  return send_bytes(line, length + 1) && await_answer();
}

/* A field of /proc/self/status in bytes, without touching the heap. */
static uint64_t status_field(const char *field) {
  static char text[8192];
  int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (got < 0) _exit(92);
  close(file);
  text[got] = 0;
  const char *at = strstr(text, field);
  return at ? strtoull(at + strlen(field), 0, 10) * 1024 : 0;
}

/* Sends a mark; prints its memory figures from before the mark. */
static void figures_and_mark(const char *name) {
  line_open();
  line_number("VmData", status_field("VmData:"));
  line_number("VmSize", status_field("VmSize:"));
  line_number("RssAnon", status_field("RssAnon:"));
  line_number("answered", (uint64_t)mark(name));
  line_print();
}

static char *filled(uint64_t bytes) {
  char *block = opaque(malloc(bytes));
  if (!block) _exit(93);
  memset(block, 1, bytes);
  return opaque(block);
}

static int grow_and_free(uint64_t mebibytes) {
  figures_and_mark("begun");
  char *block = filled(mebibytes * MIB);
  figures_and_mark("grown");
  free(block);
  figures_and_mark("freed");
  return 0;
}

/* `processes` concurrent processes send `count` marks each. Fails if one gets no answer. With
 * `stay` no process ends before all have sent all their marks. */
static int storm(uint64_t processes, uint64_t count, int stay) {
  int ends[2];
  if (pipe(ends)) return 96;
  for (uint64_t process = 0; process < processes; process++) {
    if (fork()) continue;
    for (uint64_t one = 0; one < count; one++) {
      char name[64];
      snprintf(name, sizeof name, "p%d-%d", (int)process, (int)one);
      if (!mark(name)) _exit(1);
    }
    char byte;
    close(ends[1]);
    /* The read returns 0 when all processes have closed the write end. */
    while (stay && read(ends[0], &byte, 1) < 0 && errno == EINTR) continue;
    _exit(0);
  }
  close(ends[1]);
  int status, wrong = 0;
  while (wait(&status) > 0) wrong += status != 0;
  return wrong;
}

/* One process sends `count` marks and reads no answer; another sends ten and reads each answer. */
static int flood(uint64_t count) {
  if (!fork()) {
    for (uint64_t one = 0; one < count; one++)
      if (!send_bytes("flood\n", 6)) _exit(1);
    _exit(0);
  }
  int wrong = 0, status;
  for (int one = 0; one < 10; one++) wrong += !mark("orderly");
  while (wait(&status) > 0) wrong += status != 0;
  return wrong;
}

/* A child sends marks, reads no answers and ends; the recorder must still answer a later mark. */
static int mark_after_flood(uint64_t count) {
  int status;
  if (!fork()) {
    for (uint64_t one = 0; one < count; one++)
      if (!send_bytes("flood\n", 6)) _exit(1);
    _exit(0);
  }
  return wait(&status) < 0 || status != 0 || !mark("orderly");
}

/* Sends marks with malformed names. */
static int odd_names(void) {
  static char long_name[MIB + 1];
  memset(long_name, 'x', MIB);
  long_name[MIB] = '\n';
  int wrong = !mark("") + !mark("a\033[2Jb\tc\rd") + !mark("\xff\xfe");
  wrong += !(send_bytes(long_name, MIB + 1) && await_answer());
  /* Two lines in one write are two marks, with two answers. */
  wrong += !(send_bytes("first\nsecond\n", 13) && await_answer() && await_answer());
  /* A name in parts. */
  wrong += !(send_bytes("in ", 3) && send_bytes("parts\n", 6) && await_answer());
  wrong += !mark("\"quoted\", </script><b>&amp;");
  return wrong;
}

static int close_all(void) {
  for (int number = 0; number < 1024; number++) close(number);
  free(filled(8 * MIB));
  return 7;
}

/* Waits until the test creates a file. */
static void await_file(const char *path) {
  while (access(path, F_OK)) usleep(1000);
}

/* Makes the empty file PATH.SUFFIX, by which the test follows this process. */
static void make_file(const char *path, const char *suffix) {
  char name[512];
  snprintf(name, sizeof name, "%s.%s", path, suffix);
  int file = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) _exit(95);
  close(file);
}

/* Whether the main thread has ended. It is a zombie while its process lives. */
static int main_thread_has_ended(void) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  if (got <= 0) return 0;
  text[got] = 0;
  /* The state follows the name, which is in parentheses. */
  char *end = strrchr(text, ')');
  return end && end[1] == ' ' && end[2] == 'Z';
}

static void *end_all(void *unused) {
  (void)unused;
  _exit(5);
}

/* Grows once the main thread has ended, and ends when the file exists. */
static void *outlive(void *path) {
  while (!main_thread_has_ended()) usleep(1000);
  filled(8 * MIB);
  await_file(path);
  _exit(6);
}

static void *meet_twice(void *barrier) {
  pthread_barrier_wait(barrier);
  pthread_barrier_wait(barrier);
  return 0;
}

/* `count` threads run while the main thread sends its mark. */
static int thread_out(uint64_t count) {
  pthread_t threads[64];
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, 0, (unsigned)count + 1);
  for (uint64_t one = 0; one < count; one++)
    if (pthread_create(&threads[one], 0, meet_twice, &barrier)) return 96;
  pthread_barrier_wait(&barrier);
  int wrong = !mark("running");
  pthread_barrier_wait(&barrier);
  for (uint64_t one = 0; one < count; one++) pthread_join(threads[one], 0);
  return wrong;
}

static int end_by(const char *way, const char *path) {
  struct rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  filled(32 * MIB);
  pthread_t thread;
  if (!strcmp(way, "exit")) return 4;
  if (!strcmp(way, "when") && path) {
    await_file(path);
    return 4;
  }
  if (!strcmp(way, "segv")) raise(SIGSEGV);
  if (!strcmp(way, "kill")) raise(SIGKILL);
  if (!strcmp(way, "abort")) abort();
  if (!strcmp(way, "wait")) {
    mark("waiting");
    park();
  }
  /* Never sleeps, so that the recorder must stop it for a ledger. */
  if (!strcmp(way, "never"))
    for (;;) getppid();
  if (!strcmp(way, "group")) {
    pthread_create(&thread, 0, end_all, 0);
    park();
  }
  if (!strcmp(way, "main_first") && path) {
    pthread_create(&thread, 0, outlive, (void *)path);
    pthread_exit(0);
  }
  return 99;
}

/* Grows in steps, sends a mark at its peak and waits for the answer. With a path it makes the file
 * PATH.full and waits for the file PATH. Then it frees everything. */
static int steps(uint64_t count, uint64_t mebibytes, const char *path) {
  char *blocks[256];
  for (uint64_t one = 0; one < count; one++) blocks[one] = filled(mebibytes * MIB);
  mark("full");
  if (path) {
    make_file(path, "full");
    await_file(path);
  }
  for (uint64_t one = 0; one < count; one++) free(blocks[one]);
  return 0;
}

/* Forks until fork fails or it has `most` children, sends a mark with their number, and lets them
 * live until a file exists. */
static int fork_bomb(uint64_t most, const char *path) {
  uint64_t forked = 0;
  int ends[2];
  if (pipe(ends)) return 96;
  while (forked < most) {
    pid_t child = fork();
    if (child < 0) break;
    if (!child) {
      char byte;
      close(ends[1]);
      /* The read returns 0 when the parent closes the write end. */
      while (read(ends[0], &byte, 1) < 0 && errno == EINTR) continue;
      _exit(0);
    }
    forked++;
  }
  char name[32];
  snprintf(name, sizeof name, "%llu", (unsigned long long)forked);
  mark(name);
  await_file(path);
  close(ends[1]);
  while (wait(0) > 0) continue;
  return 0;
}

/* Counts SIGINTs. Makes the file PATH.received at the first one, and prints the count once the file
 * PATH exists. */
static volatile sig_atomic_t received;
static void count_signal(int signal) {
  (void)signal;
  received++;
}
static int count_interrupts(const char *path) {
  struct sigaction action = {.sa_handler = count_signal};
  sigaction(SIGINT, &action, 0);
  while (!received) usleep(1000);
  make_file(path, "received");
  await_file(path);
  line_open();
  line_number("interrupts", (uint64_t)received);
  line_print();
  return 0;
}

/* Waits in epoll_wait while 50 children end in turn. SIGCHLD is ignored; counts the EINTRs. */
static int count_ignored(void) {
  int ends[2], interrupted = 0;
  struct epoll_event event = {.events = EPOLLIN};
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (pipe(ends) || epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event)) return 96;
  for (int one = 1; one <= 50; one++) {
    if (fork()) continue;
    usleep(one * 2000);
    if (one == 50 && write(ends[1], "x", 1) != 1) _exit(94);
    _exit(0);
  }
  while (epoll_wait(epoll, &event, 1, -1) < 1) interrupted++;
  line_open();
  line_number("interrupted", (uint64_t)interrupted);
  line_print();
  return 0;
}

/* Sends marks until a file exists, and prints their number. Hangs without an answer. */
static int mark_until(const char *path) {
  uint64_t marks = 0;
  while (access(path, F_OK)) {
    mark("again");
    marks++;
    usleep(200);
  }
  line_open();
  line_number("marks", marks);
  line_print();
  return 3;
}

static int change_user(void) {
  filled(8 * MIB);
  mark("before");
  if (setgid(65534) || setuid(65534)) return 98;
  filled(8 * MIB);
  mark("after");
  return 0;
}

int main(int count, char **values) {
  find_socket();
  const char *what = count > 1 ? values[1] : "";
  uint64_t first = argument(count, values, 2, 0), second = argument(count, values, 3, 0);
  if (!strcmp(what, "grow")) return grow_and_free(first);
  if (!strcmp(what, "storm")) return storm(first, second, count > 4 && !strcmp(values[4], "stay"));
  if (!strcmp(what, "flood")) return flood(first);
  if (!strcmp(what, "after-flood")) return mark_after_flood(first);
  if (!strcmp(what, "names")) return odd_names();
  if (!strcmp(what, "close")) return close_all();
  if (!strcmp(what, "end") && count > 2) return end_by(values[2], count > 3 ? values[3] : 0);
  if (!strcmp(what, "steps")) return steps(first, second, count > 4 ? values[4] : 0);
  if (!strcmp(what, "bomb") && count > 3) return fork_bomb(first, values[3]);
  if (!strcmp(what, "interrupts") && count > 2) return count_interrupts(values[2]);
  if (!strcmp(what, "ignored")) return count_ignored();
  if (!strcmp(what, "mark-until") && count > 2) return mark_until(values[2]);
  if (!strcmp(what, "threads")) return thread_out(first);
  if (!strcmp(what, "user")) return change_user();
  return 97;
}
