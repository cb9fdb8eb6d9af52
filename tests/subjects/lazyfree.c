/* Writes MIB MiB and gives them up with MADV_FREE: they are resident until the kernel
 * reclaims them. Where the limit on locked memory allows it, locks them in that state,
 * so that the kernel does not reclaim them. */
#include "subject.h"
#include "give_up.h"

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

int main(int count, char **values) {
  size_t bytes = argument(count, values, 1, 32) << 20;
  char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || give_up(memory, bytes)) return 3;
  /* mlock would write to them, which cancels MADV_FREE. */
  int is_locked = !syscall(SYS_mlock2, memory, bytes, MLOCK_ONFAULT);
  line_open();
  line_number("lazyfree_bytes", bytes);
  line_number("locked_bytes", is_locked ? bytes : 0);
  line_print();
  hold_until_quit();
}
