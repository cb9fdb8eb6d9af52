/* Threads that each wait in a different call for a FUSE server in another process. The server
 * answers an interrupted request with EINTR, as libfuse does; with "deaf" it ignores interrupts.
 * 'd' lets the server answer all requests and prints what each call returned and the number of
 * interrupted calls. One more thread works all the time. Prints "missing" where it cannot mount.
 */
#include "subject.h"

#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#define BYTES 4096
#define CALLS(X) X(read) X(pread) X(readv) X(preadv) X(write) X(pwrite) X(stat) X(open)

#include "calls.h"

/* Shared with the server: whether requests wait for 'd', how many wait, and which calls were
 * interrupted, by their files. */
static struct shared {
  _Atomic uint64_t holds, waiting, interrupted[call_count];
} *shared;

/* Each thread has its own file: the kernel serialises calls on one file. */
static char folder[] = "/tmp/strandline-fuse-XXXXXX", paths[call_count][64], data[BYTES];
static int files[call_count];
static _Atomic long returned[call_count];
static _Atomic pid_t threads[call_count];

/* --- the server ---------------------------------------------------------- */
struct held {
  struct fuse_in_header header;
  uint32_t bytes;
};
static struct held held[call_count];

static void reply(int device, uint64_t unique, int error, const void *body, size_t length) {
  static char message[sizeof(struct fuse_out_header) + BYTES];
  struct fuse_out_header header = {.len = (uint32_t)(sizeof header + length), .error = error, .unique = unique};
  memcpy(message, &header, sizeof header);
  if (length) memcpy(message + sizeof header, body, length);
  if (write(device, message, sizeof header + length) < 0 && errno != ENOENT) _exit(5);
}

static struct fuse_attr attributes(uint64_t node) {
  return (struct fuse_attr){.ino = node, .size = node == 1 ? 0 : 1 << 20, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644, .nlink = 1, .blksize = BYTES};
}

static void answer(int device, const struct fuse_in_header *in, uint32_t bytes) {
  switch (in->opcode) {
    case FUSE_GETATTR: {
      struct fuse_attr_out out = {.attr = attributes(in->nodeid)};
      return reply(device, in->unique, 0, &out, sizeof out);
    }
    case FUSE_OPEN: {
      struct fuse_open_out out = {.open_flags = FOPEN_DIRECT_IO};
      return reply(device, in->unique, 0, &out, sizeof out);
    }
    case FUSE_READ: return reply(device, in->unique, 0, data, bytes < BYTES ? bytes : BYTES);
    case FUSE_WRITE: {
      struct fuse_write_out out = {.size = bytes};
      return reply(device, in->unique, 0, &out, sizeof out);
    }
    default: return reply(device, in->unique, -ENOSYS, 0, 0);
  }
}

static int is_held(uint32_t opcode) {
  return opcode == FUSE_GETATTR || opcode == FUSE_OPEN || opcode == FUSE_READ || opcode == FUSE_WRITE;
}

static void hold(const struct fuse_in_header *in, uint32_t bytes) {
  for (int i = 0; i < call_count; i++) {
    if (held[i].header.unique) continue;
    held[i] = (struct held){*in, bytes};
    atomic_fetch_add(&shared->waiting, 1);
    return;
  }
  _exit(6);
}

/* Answers an interrupted request; an unknown one was answered already. */
static void interrupt(int device, uint64_t unique, int deaf) {
  for (int i = 0; i < call_count; i++) {
    if (held[i].header.unique != unique) continue;
    atomic_store(&shared->interrupted[held[i].header.nodeid - 2], 1);
    if (deaf) continue;
    held[i].header.unique = 0;
    atomic_fetch_sub(&shared->waiting, 1);
    reply(device, unique, -EINTR, 0, 0);
  }
}

static void serve(int device, int deaf) {
  static char request[1 << 20];
  for (;;) {
    ssize_t got = read(device, request, sizeof request);
    for (int i = 0; i < call_count && !atomic_load(&shared->holds); i++) {
      if (held[i].header.unique) answer(device, &held[i].header, held[i].bytes);
      held[i].header.unique = 0;
    }
    if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) {
      usleep(1000);
      continue;
    }
    if (got < (ssize_t)sizeof(struct fuse_in_header)) _exit(0);
    const struct fuse_in_header *in = (const void *)request;
    const void *body = request + sizeof *in;
    uint32_t bytes = in->opcode == FUSE_READ || in->opcode == FUSE_WRITE ? ((const struct fuse_read_in *)body)->size : 0;
    if (in->opcode == FUSE_INIT) {
      struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_readahead = BYTES, .max_write = BYTES, .max_background = 16, .congestion_threshold = 12};
      reply(device, in->unique, 0, &out, sizeof out);
    } else if (in->opcode == FUSE_LOOKUP) {
      uint64_t node = 2 + (uint64_t)(*(const char *)body - '0');
      struct fuse_entry_out out = {.nodeid = node, .attr = attributes(node)};
      reply(device, in->unique, 0, &out, sizeof out);
    } else if (in->opcode == FUSE_INTERRUPT) {
      interrupt(device, ((const struct fuse_interrupt_in *)body)->unique, deaf);
    } else if (in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET) {
      continue;
    } else if (is_held(in->opcode) && atomic_load(&shared->holds)) {
      hold(in, bytes);
    } else {
      answer(device, in, bytes);
    }
  }
}

/* --- the program --------------------------------------------------------- */
static long once(enum call call) {
  int file = files[call];
  struct iovec halves[2] = {{data, BYTES / 2}, {data + BYTES / 2, BYTES / 2}};
  struct stat status;
  switch (call) {
    case call_read: return read(file, data, BYTES);
    case call_pread: return pread(file, data, BYTES, 0);
    case call_readv: return readv(file, halves, 2);
    case call_preadv: return preadv(file, halves, 2, 0);
    case call_write: return write(file, data, BYTES);
    case call_pwrite: return pwrite(file, data, BYTES, 0);
    case call_stat: return stat(paths[call], &status) ? -1 : BYTES;
    case call_open: return open(paths[call], O_RDONLY) < 0 ? -1 : BYTES;
    default: return -3;
  }
}

static void *wait_for_server(void *argument) {
  enum call call = (enum call)(uintptr_t)argument;
  atomic_store(&threads[call], (pid_t)syscall(SYS_gettid));
  long result = once(call);
  atomic_store(&returned[call], result < 0 ? 1000000 + errno : result);
  atomic_store(&threads[call], -1);
  park();
  return 0;
}

static void *work(void *unused) {
  (void)unused;
  for (;;) free(opaque(malloc(100)));
  return 0;
}

static int missing(void) {
  line_open();
  line_number("missing", 1);
  line_print();
  return 0;
}

int main(int count, char **values) {
  (void)values;
  char options[100];
  pthread_t id;
  shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  /* In a new mount namespace the mount ends with the process. */
  int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0 || unshare(CLONE_NEWNS) || mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) || !mkdtemp(folder)) return missing();
  snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d", device, getuid(), getgid());
  if (mount("strandline", folder, "fuse", MS_NOSUID | MS_NODEV, options)) {
    rmdir(folder);
    return missing();
  }
  pid_t parent = getpid();
  pid_t server = fork();
  if (server == 0) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent) _exit(4);
    serve(device, count > 1);
  }
  close(device);
  if (server < 0) return 3;
  for (int i = 0; i < call_count; i++) {
    snprintf(paths[i], sizeof paths[i], "%s/%d", folder, i);
    files[i] = open(paths[i], O_RDWR);
    if (files[i] < 0) return 3;
  }
  atomic_store(&shared->holds, 1);
  for (int i = 0; i < call_count; i++) {
    if (pthread_create(&id, 0, wait_for_server, (void *)(uintptr_t)i)) return 3;
  }
  while (atomic_load(&shared->waiting) < call_count) usleep(1000);
  if (pthread_create(&id, 0, work, 0)) return 3;
  line_open();
  line_number("missing", 0);
  line_print();
  while (next_command() != 'q') {
    /* The server reads this with its next request. */
    atomic_store(&shared->holds, 0);
    struct stat status;
    stat(paths[0], &status);
    line_open();
    for (int i = 0; i < call_count; i++) {
      while (atomic_load(&threads[i]) != -1) usleep(1000);
      line_number(names[i], (uint64_t)atomic_load(&returned[i]));
    }
    uint64_t interrupted = 0;
    for (int i = 0; i < call_count; i++) interrupted += atomic_load(&shared->interrupted[i]);
    line_number("interrupted", interrupted);
    line_print();
  }
  umount2(folder, MNT_DETACH);
  rmdir(folder);
  _exit(0);
}
