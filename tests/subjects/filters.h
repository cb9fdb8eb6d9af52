/* Seccomp filters for test subjects. A forbidden call kills the process, which reveals a call that
 * should not have been made. */
#ifndef FILTERS_H
#define FILTERS_H
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, value)

static inline int put_filter(struct sock_filter *filter, size_t count) {
  struct sock_fprog program = {(unsigned short)count, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Forbids the calls that release memory and those that copy the process. */
static inline int put_deadly_filter(void) {
  struct sock_filter filter[] = {
      LOAD(nr), IS(SYS_madvise, 1, 0), IS(SYS_clone, 0, 1), ANSWER(SECCOMP_RET_KILL_PROCESS), ANSWER(SECCOMP_RET_ALLOW)};
  return put_filter(filter, sizeof filter / sizeof *filter);
}

/* Like a container's filter: forbids other architectures, x32's numbers, namespaces and ptrace.
 * clone3 fails with ENOSYS, because a filter cannot see its flags. */
static inline int put_container_filter(void) {
  struct sock_filter filter[] = {
      LOAD(arch), IS(AUDIT_ARCH_X86_64, 0, 7),
      LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 5, 0),
      IS(SYS_clone3, 5, 0), IS(SYS_ptrace, 3, 0), IS(SYS_clone, 0, 4),
      LOAD(args[0]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x7e020000, 0, 2),
      ANSWER(SECCOMP_RET_KILL_PROCESS), ANSWER(SECCOMP_RET_ERRNO | ENOSYS), ANSWER(SECCOMP_RET_ALLOW)};
  return put_filter(filter, sizeof filter / sizeof *filter);
}
#endif
