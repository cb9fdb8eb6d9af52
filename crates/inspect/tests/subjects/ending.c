/* A process of known heap that ends in a given way.
 *
 *   ending WAY [THREADS]
 *
 * It keeps 64 MiB in chunks of 1,000 bytes, frees every eighth megabyte of them, starts THREADS threads
 * that wait, prints "ready TID ..." with the threads' ids, and ends as WAY says when a byte comes on its
 * standard input: exit (from main), thread (a second thread ends the process), abort, segv, leader (only
 * the main thread ends); with "hold" it does nothing, with "one" its first extra thread ends.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHUNKS = (64 << 20) / 1000, MAX_THREADS = 16 };
static char *chunks[CHUNKS];
static pid_t tids[MAX_THREADS];
static const char *way;
static pthread_barrier_t started;
static int wake[2];

static void *extra(void *argument) {
  long index = (long)argument;
  tids[index] = (pid_t)syscall(SYS_gettid);
  /* A thread's own cache and arena: freed chunks that only its thread pointer leads to. */
  void *some[8];
  for (int i = 0; i < 8; i++) some[i] = malloc(200);
  for (int i = 0; i < 8; i++) free(some[i]);
  pthread_barrier_wait(&started);
  if (index == 0) {
    char byte;
    if (read(wake[0], &byte, 1) != 1) return 0;
    if (!strcmp(way, "one")) return 0;
    syscall(SYS_exit_group, 3);
  }
  for (;;) pause();
}

int main(int count, char **values) {
  way = count > 1 ? values[1] : "exit";
  /* Aborts and faults are on purpose: no core files. */
  setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
  long threads = count > 2 ? atol(values[2]) : 0;
  if (threads > MAX_THREADS || pipe(wake)) return 90;
  for (int i = 0; i < CHUNKS; i++) {
    if (!(chunks[i] = malloc(1000))) return 91;
    memset(chunks[i], 1, 1000);
  }
  for (int i = 0; i < CHUNKS; i++)
    if (i % 8000 < 1000) free(chunks[i]);
  pthread_barrier_init(&started, 0, (unsigned)threads + 1);
  for (long i = 0; i < threads; i++) {
    pthread_t thread;
    if (pthread_create(&thread, 0, extra, (void *)i)) return 92;
  }
  pthread_barrier_wait(&started);
  printf("ready");
  for (long i = 0; i < threads; i++) printf(" %d", tids[i]);
  printf("\n");
  fflush(stdout);
  if (!strcmp(way, "hold"))
    for (;;) pause();
  char byte;
  if (read(0, &byte, 1) != 1) return 93;
  if (!strcmp(way, "exit")) return 7;
  if (!strcmp(way, "abort")) abort();
  if (!strcmp(way, "segv")) *(volatile int *)8 = 1;
  if (!strcmp(way, "leader")) pthread_exit(0);
  if (write(wake[1], "x", 1) != 1) return 94;
  for (;;) pause();
}
