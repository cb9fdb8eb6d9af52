/* Executes itself repeatedly, each time after some milliseconds of allocations, until
 * standard input is closed; COUNT is the number of times.
 */
#include "subject.h"

#include <poll.h>

int main(int count, char **values) {
  uint64_t generation = argument(count, values, 1, 0);
  uint64_t r = random_seed(generation);
  char text[24];
  for (int i = 0; i < 2000; i++) {
    char *block = malloc(1 + random_below(&r, 3000));
    if (!block) return 3;
    block[0] = 1;
    if (random_below(&r, 2)) free(opaque(block));
  }
  if (generation == 0) {
    line_open();
    line_number("threads", 1);
    line_print();
  }
  struct pollfd in = {0, POLLIN, 0};
  if (poll(&in, 1, (int)random_below(&r, 4)) > 0) return 0;
  size_t at = sizeof text;
  text[--at] = 0;
  for (uint64_t n = generation + 1; n; n /= 10) text[--at] = (char)('0' + n % 10);
  char *arguments[] = {values[0], text + at, 0};
  extern char **environ;
  execve("/proc/self/exe", arguments, environ);
  return 4;
}
