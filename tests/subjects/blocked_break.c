/* A main arena that continues in mmapped pieces, because a mapping stands behind the break. Frees
 * nine of ten blocks at random.
 *
 *   blocked_break [SEED] [BLOCKS] [LOW] [HIGH] [AFTER_KIB] [APART] [WRONG]
 *
 * Allocates BLOCKS of LOW to HIGH bytes and blocks the break once the heap has grown by AFTER_KIB.
 * With APART=1 it frees nothing in the middle third and maps a page in front of each new piece, so
 * that pieces are apart and some have no free chunk. It adds WRONG to the arena's count of bytes
 * from the kernel, as if a part of the arena could not be found. Then 'i', 't' and 'q' as
 * random_heap has them.
 */
#include "subject.h"
#include <link.h>

/* Adds `wrong` to main_arena.system_mem: the word before max_system_mem, which has the same value
 * while the heap has only grown (malloc.c, struct malloc_state). */
static int falsify_system_mem(struct dl_phdr_info *info, size_t unused, void *wrong) {
  (void)unused;
  struct figures now;
  read_mallinfo(&now);
  for (int i = 0; strstr(info->dlpi_name, "libc.so") && i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_W)) continue;
    uintptr_t from = (info->dlpi_addr + part->p_vaddr + 4095) & ~(uintptr_t)4095;
    volatile uint64_t *words = (volatile uint64_t *)from;
    size_t count = (info->dlpi_addr + part->p_vaddr + part->p_memsz - from) / 8;
    for (size_t w = 0; w + 1 < count; w++)
      if (words[w] == now.arena && words[w + 1] == now.arena) {
        words[w] += *(uint64_t *)wrong;
        return 1;
      }
  }
  return 0;
}

int main(int count, char **values) {
  static struct figures now;
  uint64_t r = random_seed(argument(count, values, 1, 1));
  size_t blocks = argument(count, values, 2, 200000);
  size_t low = argument(count, values, 3, 16), high = argument(count, values, 4, 515);
  size_t after = argument(count, values, 5, 4096) << 10, live = 0;
  int apart = (int)argument(count, values, 6, 0), blocked = 0;
  char *start = sbrk(0), *lowest = 0;
  char **all = mmap(0, blocks * sizeof *all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED || high < low) return 3;
  for (size_t i = 0; i < blocks; i++) {
    size_t bytes = low + random_below(&r, high - low + 1);
    if (!(all[i] = malloc(bytes))) return 3;
    memset(all[i], 7, bytes);
    if (apart && all[i] > (char *)sbrk(0) && (!lowest || all[i] < lowest)) {
      lowest = all[i];
      char *front = (char *)(((uintptr_t)lowest & ~(uintptr_t)4095) - 4096);
      /* The kernel places pieces from high addresses to low ones; an existing mapping keeps them
       * apart. */
      mmap(front, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    }
    char *end = sbrk(0);
    if (!blocked && (size_t)(end - start) >= after) {
      end = (char *)(((uintptr_t)end + 4095) & ~(uintptr_t)4095);
      if (mmap(end, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
        return 4;
      blocked = 1;
    }
  }
  for (size_t i = 0; i < blocks; i++) {
    int keep = apart && i > blocks / 3 && i < blocks * 2 / 3;
    if (!keep && random_below(&r, 10)) {
      free(all[i]);
    } else {
      live++;
    }
  }
  munmap(all, blocks * sizeof *all);
  uint64_t wrong = argument(count, values, 7, 0);
  if (wrong && !dl_iterate_phdr(falsify_system_mem, &wrong)) return 5;
  read_mallinfo(&now);
  line_open();
  line_mallinfo("mallinfo", &now);
  line_number("survivors", live);
  line_number("blocked", (uint64_t)blocked);
  line_number("break_address", (uint64_t)(uintptr_t)sbrk(0));
  line_print();
  obey_heap_commands();
}
