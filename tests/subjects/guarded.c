/* guarded WHAT: a heap of 20,000 blocks, most of them freed, and
 *   seccomp  every thread under a filter that kills for madvise and clone
 *   filtered every thread under a filter like a container's
 *   dispatch Syscall User Dispatch (its system calls may become signals), not active
 *   watched  an open userfaultfd
 *   apart    an open userfaultfd of a thread with its own descriptors (CLONE_FILES of unshare)
 *   locked   a block of 1 MiB locked in memory
 *   freed    1 MiB given up with MADV_FREE
 *   ring     an io_uring
 *   huge     one reserved huge page (hugetlb)
 *   vfork    made by vfork, with its parent's memory
 *   few      a user whose limit allows only a few more processes
 */

#include "subject.h"
#include "filters.h"
#include "give_up.h"

#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/wait.h>

static pthread_barrier_t is_open;

static void *opens_apart(void *unused) {
  (void)unused;
  if (unshare(CLONE_FILES) || syscall(SYS_userfaultfd, O_CLOEXEC) < 0) _exit(7);
  pthread_barrier_wait(&is_open);
  for (;;) pause();
  return 0;
}

int main(int count, char **values) {
  if (count != 2) return 2;
  for (int i = 0; i < 20000; i++) {
    static char *blocks[100];
    char *block = blocks[i % 100] = malloc(300);
    if (!block) return 3;
    memset(block, 1, 300);
    for (int k = 1; i % 100 == 99 && k < 100; k++) free(blocks[k]);
  }
  if (!strcmp(values[1], "seccomp")) {
    if (put_deadly_filter()) return 3;
  } else if (!strcmp(values[1], "filtered")) {
    if (put_container_filter()) return 3;
  } else if (!strcmp(values[1], "dispatch")) {
    static volatile char selector = SYSCALL_DISPATCH_FILTER_ALLOW;
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector)) return 7;
  } else if (!strcmp(values[1], "watched")) {
    if (syscall(SYS_userfaultfd, O_CLOEXEC) < 0) return 7;
  } else if (!strcmp(values[1], "apart")) {
    pthread_t thread;
    if (pthread_barrier_init(&is_open, 0, 2) || pthread_create(&thread, 0, opens_apart, 0)) return 7;
    pthread_barrier_wait(&is_open);
  } else if (!strcmp(values[1], "ring")) {
    static struct io_uring_params parameters;
    if (syscall(SYS_io_uring_setup, 8, &parameters) < 0) return 7;
  } else if (!strcmp(values[1], "huge")) {
    char *block =
        mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (block == MAP_FAILED) return 7;
    memset(block, 1, 4096);
  } else if (!strcmp(values[1], "vfork")) {
    int status;
    if (vfork() && wait(&status) > 0) return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
  } else if (!strcmp(values[1], "few")) {
    struct rlimit limit = {8, 8};
    if (setrlimit(RLIMIT_NPROC, &limit) || setresuid(64999, 64999, 64999) || prctl(PR_SET_DUMPABLE, 1)) return 7;
  } else {
    char *block = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return 3;
    memset(block, 1, 1 << 20);
    if (strcmp(values[1], "freed") ? mlock(block, 1 << 20) : give_up(block, 1 << 20)) return 3;
  }
  line_open();
  line_number("pid", (uint64_t)getpid());
  line_print();
  while (next_command() != 'q') {}
  // A child that shares its parent's memory must not run exit handlers.
  _exit(0);
}
