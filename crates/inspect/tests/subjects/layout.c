/* A process whose address space is known: prints "ready" and what lies where, then waits.
 *
 *   layout KIND
 *
 * small: nothing beside what every program has. many: 3,000 mappings of one page each. lazy: 8 MiB of which
 * the second half was given up with MADV_FREE. sparse: 40,000 pages, 1 MiB apart each. heap: two arenas of
 * 150,000 chunks of 8 to 800 bytes, two of three freed. named: a mapped file with a long, odd name.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../../../tests/subjects/give_up.h"

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

static char *map(size_t bytes, int flags) {
  char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (at == MAP_FAILED) _exit(90);
  return at;
}

static void *fill(void *unused) {
  enum { CHUNKS = 150000 };
  static __thread char *chunks[CHUNKS];
  unsigned random = 1;
  for (int i = 0; i < CHUNKS; i++) {
    random = random * 1103515245 + 12345;
    size_t bytes = 8 + (random >> 16) % 800;
    if (!(chunks[i] = malloc(bytes))) _exit(91);
    memset(chunks[i], 1, bytes);
  }
  for (int i = 0; i < CHUNKS; i++)
    if (i % 3 || i / 10000 % 3 == 1) free(chunks[i]);
  return unused;
}

static void *fill_and_stay(void *ready) {
  fill(0);
  pthread_barrier_wait(ready);
  for (;;) pause();
}

int main(int count, char **values) {
  const char *kind = count > 1 ? values[1] : "small";
  char *at = 0;
  /* Where huge pages come unasked, they would fill what is not touched, now or later. */
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  if (!strcmp(kind, "many")) {
    at = map(6000 * 4096, 0);
    for (int i = 0; i < 6000; i += 2) {
      at[i * 4096] = 1;
      if (mprotect(at + (i + 1) * 4096, 4096, PROT_NONE)) return 92;
    }
  } else if (!strcmp(kind, "lazy")) {
    at = map(8 << 20, 0);
    memset(at, 1, 4 << 20);
    if (give_up(at + (4 << 20), 4 << 20)) return 93;
    /* The whole mapping is locked, so that it stays one, and the kernel takes no page of it. */
    if (syscall(SYS_mlock2, at, 8 << 20, MLOCK_ONFAULT)) fprintf(stderr, "they cannot be locked\n");
  } else if (!strcmp(kind, "sparse")) {
    at = map((size_t)40000 << 20, MAP_NORESERVE);
    for (size_t i = 0; i < 40000; i++) at[i << 20] = 1;
  } else if (!strcmp(kind, "heap")) {
    static pthread_barrier_t ready;
    pthread_t thread;
    pthread_barrier_init(&ready, 0, 2);
    if (pthread_create(&thread, 0, fill_and_stay, &ready)) return 94;
    fill(0);
    pthread_barrier_wait(&ready);
  } else if (!strcmp(kind, "named")) {
    char name[300];
    snprintf(name, sizeof name, "/tmp/strandline-%d-%0200d-\"\n\033[31m", getpid(), 0);
    int file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, 8192)) return 95;
    at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    unlink(name);
    if (at == MAP_FAILED) return 96;
    at[0] = 1;
  }
  printf("ready %lx\n", (unsigned long)at);
  fflush(stdout);
  for (;;) pause();
}
