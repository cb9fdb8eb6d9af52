/* A malicious heap. The process builds an ordinary heap, damages it as MODE says, and
 * then calls no malloc.
 *
 *   trap_heap MODE [SEED]
 *
 *   random     every byte of [heap] is random
 *   words      one word in 50 of [heap] is random
 *   cycle      the free lists of chunks, tcache and fastbins are circular
 *   huge       chunk sizes of 2^63 and of almost 2^64
 *   zero       chunk sizes of 0
 *   misaligned list pointers to odd addresses
 *   wild       list pointers to kernel addresses, page 0 and the vsyscall page
 *   self       bins point into main_arena
 *   arena      all bins, top and the ring of arenas are random
 *   ring       the ring of arenas runs through the heap and never closes
 *   top        top lies far outside the heap, the system's share is 2^64-1
 *   secondary  a secondary heap's header is random
 *
 * 'm' calls malloc_trim, which ends the process in most modes.
 *
 * With a marker (MARKER=text in the environment) every damaged word that needs
 * no particular value, and all payload, is the marker's bytes.
 */
#include "subject.h"

enum { BLOCKS = 20000, BINS_SPAN = 127 * 16 };

static uint64_t dice;
static void *kept[BLOCKS];
static char *second_heap;
static atomic_uint ready;
static const char *marker;

static uint64_t random_word(void) {
  uint64_t word = random_next(&dice);
  if (marker) {
    memset(&word, 0, sizeof word);
    size_t length = strlen(marker);
    memcpy(&word, marker, length < 8 ? length : 8);
  }
  return word;
}

static void payload(void *block, size_t bytes) {
  char *to = block;
  for (size_t i = 0; i < bytes; i++) to[i] = marker ? marker[i % strlen(marker)] : (char)(i % 251 + 1);
}

static void *other_thread(void *unused) {
  (void)unused;
  void *blocks[200];
  for (int i = 0; i < 200; i++)
    if ((blocks[i] = malloc(3000))) payload(blocks[i], 3000);
  for (int i = 0; i < 200; i += 2) free(blocks[i]);
  second_heap = (char *)((uintptr_t)blocks[1] & ~(uintptr_t)((64 << 20) - 1));
  atomic_store(&ready, 1);
  park();
  return 0;
}

/* The address of the heap's first byte: field 47 of /proc/self/stat (start_brk). */
static char *heap_start(void) {
  static char text[2048];
  int file = open("/proc/self/stat", O_RDONLY);
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  if (got <= 0) _exit(3);
  char *at = strrchr(text, ')');
  for (int field = 2; at && field < 47; field++) at = strchr(at + 1, ' ');
  return at ? (char *)(uintptr_t)strtoull(at + 1, 0, 10) : 0;
}

/* The address of bins[0] in main_arena, to which an unsorted chunk's fd or bk points. */
static uint64_t *find_bins(void) {
  uint64_t *chunk = malloc(5000);
  void *guard = malloc(40);
  opaque(guard);
  if (!chunk) _exit(3);
  free(opaque(chunk));
  chunk = opaque(chunk);
  /* fd leads to the arena, whether or not the chunk is alone in the unsorted bin */
  uint64_t *at = (uint64_t *)(uintptr_t)chunk[0];
  char *low = heap_start(), *high = sbrk(0);
  for (int i = 0; i < 100000 && (char *)at >= low && (char *)at < high; i++) at = (uint64_t *)(uintptr_t)at[2];
  return at + 2;
}

static void over_heap(char *low, char *high, unsigned share) {
  for (uint64_t *at = (uint64_t *)low; (char *)(at + 1) <= high; at++)
    if (random_below(&dice, share) == 0) *at = random_word();
}

/* No pointer refers to freed chunks; their first words are list links. */
static void damage_links(void **freed, int count, const char *mode) {
  static const uint64_t wild[] = {UINT64_C(0xffff888000000000), 0, UINT64_C(0xffffffffff600000), 8, ~UINT64_C(0) - 15};
  for (int i = 0; i < count; i++) {
    uint64_t *link = freed[i];
    uint64_t header = (uint64_t)(uintptr_t)link - 16;
    if (!strcmp(mode, "cycle")) {
      /* alternates plain and protected forms of a pointer to itself */
      link[0] = i % 2 ? header : (((uint64_t)(uintptr_t)link >> 12) ^ (uint64_t)(uintptr_t)link);
      if (i % 3 == 0) link[1] = header;
    } else if (!strcmp(mode, "misaligned")) {
      link[0] += 1 + random_below(&dice, 14);
      link[1] += 3;
    } else if (!strcmp(mode, "wild")) {
      link[0] = wild[random_below(&dice, 5)];
      link[1] = wild[random_below(&dice, 5)];
    } else if (!strcmp(mode, "huge")) {
      link[-1] = random_below(&dice, 2) ? (UINT64_C(1) << 63) | 1 : ~UINT64_C(0) - 15;
    } else if (!strcmp(mode, "zero")) {
      link[-1] = random_below(&dice, 2) ? 1 : 0;
    }
  }
}

static void damage_arena(uint64_t *bins, const char *mode, char *low) {
  if (!strcmp(mode, "arena")) {
    for (int i = -2; i < BINS_SPAN / 8 + 8; i++) bins[i] = random_word();
  } else if (!strcmp(mode, "self")) {
    for (int i = 0; i < BINS_SPAN / 8; i++) bins[i] = (uint64_t)(uintptr_t)(bins + random_below(&dice, 250));
  } else if (!strcmp(mode, "ring")) {
    /* next stands behind 254 bin words and the bitmap of bins */
    bins[256] = (uint64_t)(uintptr_t)(low + 4096);
    for (uint64_t *at = (uint64_t *)low; (char *)(at + 1) <= low + 65536; at++)
      *at = (uint64_t)(uintptr_t)(low + 4096 + 16 * random_below(&dice, 3000));
  } else if (!strcmp(mode, "top")) {
    bins[-2] = UINT64_C(0x7ffffffff000);
    bins[259] = ~UINT64_C(0);
    bins[260] = ~UINT64_C(0);
  }
}

int main(int count, char **values) {
  static void *freed[BLOCKS];
  const char *mode = count > 1 ? values[1] : "random";
  int freed_count = 0;
  pthread_t id;
  marker = getenv("MARKER");
  dice = random_seed(argument(count, values, 2, 1));
  for (int i = 0; i < BLOCKS; i++) {
    size_t bytes = 24 + random_below(&dice, i % 10 ? 300 : 6000);
    if (!(kept[i] = malloc(bytes))) return 3;
    payload(kept[i], bytes);
  }
  for (int i = 0; i < BLOCKS; i++)
    if (random_below(&dice, 3)) {
      freed[freed_count++] = kept[i];
      free(kept[i]);
      kept[i] = 0;
    }
  if (pthread_create(&id, 0, other_thread, 0)) return 3;
  while (!atomic_load(&ready)) usleep(1000);
  uint64_t *bins = find_bins();
  char *low = heap_start(), *high = sbrk(0);
  if (!strcmp(mode, "random")) over_heap(low, high, 1);
  else if (!strcmp(mode, "words")) over_heap(low, high, 50);
  else if (!strcmp(mode, "secondary")) for (int i = 0; i < 512; i++) ((uint64_t *)second_heap)[i] = random_word();
  else damage_links(freed, freed_count, mode);
  damage_arena(bins, mode, low);
  line_open();
  line_number("damaged", 1);
  line_number("freed", (uint64_t)freed_count);
  line_print();
  for (;;) switch (next_command()) {
      case 'm':
        /* malloc_trim reads the damaged heap and aborts in most modes. */
        malloc_trim(0);
        line_open();
        line_number("survived", 1);
        line_print();
        break;
      case 'q':
        _exit(0);
      default:
        break;
    }
}
