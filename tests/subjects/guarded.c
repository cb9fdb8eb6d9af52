/* guarded WHAT: a heap of 20,000 blocks, and
 *   seccomp  every thread under a filter, which allows all
 *   watched  an open userfaultfd
 *   locked   a block of 1 MiB locked in memory
 *   freed    1 MiB given up with MADV_FREE
 */
#include "subject.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

int main(int count, char **values) {
  if (count != 2) return 2;
  for (int i = 0; i < 20000; i++) {
    char *block = malloc(300);
    if (!block) return 3;
    memset(block, 1, 300);
    if (i % 3 == 0) free(block);
  }
  if (!strcmp(values[1], "seccomp")) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {1, all};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 3;
  } else if (!strcmp(values[1], "watched")) {
    if (syscall(SYS_userfaultfd, O_CLOEXEC) < 0) return 7;
  } else {
    char *block = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return 3;
    memset(block, 1, 1 << 20);
    if (strcmp(values[1], "freed") ? mlock(block, 1 << 20) : madvise(block, 1 << 20, MADV_FREE)) return 3;
  }
  line_open();
  line_number("threads", 1);
  line_print();
  while (next_command() != 'q') {}
  return 0;
}
