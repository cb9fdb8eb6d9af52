/* Fills a heap of GIB GiB with CHUNKS_THOUSAND thousand chunks of random size, keeps SURVIVE
 * percent and frees the others in random order or in address order.
 *
 *   big_heap GIB CHUNKS_THOUSAND [random|address] [SURVIVE] [SEED]
 *
 * GIB may be a fraction such as 0.25. Every page of the heap is written. Then 'i',
 * 't' and 'q' as random_heap has them.
 */
#include "subject.h"

int main(int count, char **values) {
  static struct figures now;
  double gib = count > 1 ? strtod(values[1], 0) : 1;
  size_t chunks = argument(count, values, 2, 3000) * 1000;
  int by_address = count > 3 && values[3][0] == 'a';
  size_t survive = argument(count, values, 4, 4);
  uint64_t r = random_seed(argument(count, values, 5, 1));
  size_t mean = (size_t)(gib * (double)(1 << 30)) / (chunks ? chunks : 1), spread = 2 * (mean > 24 ? mean - 16 : 8);
  char **all = mmap(0, chunks * sizeof *all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!chunks || all == MAP_FAILED) return 3;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  for (size_t i = 0; i < chunks; i++) {
    size_t bytes = 1 + random_below(&r, spread);
    if (!(all[i] = malloc(bytes))) return 3;
    all[i][0] = 1;
    all[i][bytes - 1] = 1;
    for (size_t at = 4096; at < bytes; at += 4096) all[i][at] = 1;
  }
  if (!by_address)
    for (size_t i = chunks - 1; i > 0; i--) {
      size_t other = random_below(&r, i + 1);
      char *swap = all[i];
      all[i] = all[other];
      all[other] = swap;
    }
  for (size_t i = 0; i < chunks; i++)
    if (random_below(&r, 100) >= survive) free(all[i]);
  munmap(all, chunks * sizeof *all);
  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_number("chunks", chunks);
  line_print();
  obey_heap_commands();
}
