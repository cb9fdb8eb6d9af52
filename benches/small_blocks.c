/* small_blocks GIB [free]: blocks of 300 bytes, every third of which is freed with `free`; a line when it stands, then waits for its
 * input's end. On whatever malloc it is given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **values) {
  size_t blocks = (size_t)(atof(count > 1 ? values[1] : "1") * (1 << 30)) / 320;
  char **all = malloc(blocks * sizeof *all);
  if (!all) return 3;
  for (size_t i = 0; i < blocks; i++) {
    if (!(all[i] = malloc(300))) return 3;
    memset(all[i], 1, 300);
  }
  if (count > 2) {
    for (size_t i = 0; i < blocks; i += 3) free(all[i]);
  }
  printf("%zu\n", blocks);
  fflush(stdout);
  getchar();
  return 0;
}
