/* Shared memory of three kinds, MIB MiB each: a memfd, shared anonymous memory
 * and System V; all written. It also maps the memfd privately and writes to half
 * of its pages, which copies them. */
#include "subject.h"
#include <sys/ipc.h>
#include <sys/shm.h>

int main(int count, char **values) {
  size_t bytes = argument(count, values, 1, 8) << 20;
  int file = memfd_create("subject", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)bytes)) return 3;
  char *first = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  char *second = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int id = shmget(IPC_PRIVATE, bytes, 0600 | IPC_CREAT);
  char *third = id < 0 ? (char *)-1 : shmat(id, 0, 0);
  if (id >= 0) shmctl(id, IPC_RMID, 0); /* the kernel frees it with its last user */
  char *copied = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  if (first == MAP_FAILED || second == MAP_FAILED || copied == MAP_FAILED) return 3;
  memset(first, 1, bytes);
  memset(second, 2, bytes);
  size_t shared = 2 * bytes;
  if (third != (char *)-1) {
    memset(third, 3, bytes);
    shared += bytes;
  }
  for (size_t i = 0; i < bytes; i += 8192) copied[i] = 9;
  line_open();
  line_number("least_shmem_bytes", shared);
  line_number("copied_bytes", bytes / 2);
  line_print();
  hold_until_quit();
}
