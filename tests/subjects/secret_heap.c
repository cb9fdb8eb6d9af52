/* Memory full of a marker, in every place that a report could leak it from:
 * live and freed payload, the stack, static data, shared memory, a thread's name
 * and a mapping's name.
 */
#include "subject.h"

#include <sys/prctl.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

/* Built from two halves so that no single string of the binary, or of its
 * command line, is the marker; tests know it as "STRANDSECRETLINE". */
static char marker[17];

static void spread(char *to, size_t bytes) {
  for (size_t i = 0; i + 16 <= bytes; i += 16) memcpy(to + i, marker, 16);
}

int main(void) {
  static char shares[8192];
  memcpy(marker, "STRANDSE", 8);
  memcpy(marker + 8, "CRETLINE", 8);
  for (int i = 0; i < 20000; i++) {
    size_t bytes = 16 + (size_t)(i * 37 % 2000);
    char *block = malloc(bytes);
    if (!block) return 3;
    spread(block, bytes);
    if (i % 3) free(opaque(block));
  }
  volatile char stack[4096];
  spread((char *)stack, sizeof stack);
  spread(shares, sizeof shares);
  char *named = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *shared = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (named == MAP_FAILED || shared == MAP_FAILED) return 3;
  spread(named, 1 << 20);
  spread(shared, 1 << 20);
  /* Fails harmlessly where the kernel was built without names. */
  prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, named, 1 << 20, marker);
  prctl(PR_SET_NAME, marker);
  line_open();
  line_number("spread", 1);
  line_print();
  hold_until_quit();
}
