/* fragment THREADS MEBIBYTES KEPT: each thread allocates MEBIBYTES in blocks of 64 to 4,000 bytes and keeps one block in
 * KEPT. Prints how much is kept, as malloc_usable_size counts it, and waits. */
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t mebibytes, kept;
static uint64_t live;
static pthread_barrier_t freed;

static void *work(void *seed) {
  uint64_t random = (uint64_t)(size_t)seed * 2654435761u + 1;
  size_t room = (mebibytes << 20) / 64 + 1, count = 0, total = 0, own = 0;
  char **blocks = malloc(room * sizeof *blocks);
  while (total < mebibytes << 20) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    size_t size = 64 + (random >> 33) % 3937;
    blocks[count] = malloc(size);
    memset(blocks[count++], 1, size);
    total += size;
  }
  for (size_t one = 0; one < count; one++) {
    if (one % kept == 0)
      own += malloc_usable_size(blocks[one]);
    else
      free(blocks[one]);
  }
  own += malloc_usable_size(blocks);
  __atomic_add_fetch(&live, own, __ATOMIC_RELAXED);
  pthread_barrier_wait(&freed);
  pause();
  return blocks;
}

int main(int count, char **words) {
  if (count != 4) return 2;
  unsigned threads = (unsigned)strtoul(words[1], 0, 10);
  mebibytes = strtoul(words[2], 0, 10);
  kept = strtoul(words[3], 0, 10);
  pthread_barrier_init(&freed, 0, threads + 1);
  for (size_t one = 0; one < threads; one++) {
    pthread_t thread;
    if (pthread_create(&thread, 0, work, (void *)(one + 1))) return 1;
  }
  pthread_barrier_wait(&freed);
  printf("ready {\"live\": %" PRIu64 "}\n", live);
  fflush(stdout);
  pause();
}
