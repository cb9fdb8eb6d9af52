/* A program that does not keep still while it is recorded.

   restless exec thread|main N   replaces itself N times, by a second thread or the main one, then ends
   restless pool N               starts and joins 30 threads, N times, then ends
   restless threads              fills 32 MiB, starts four threads that sleep, and runs until it is killed
   restless once                 fills 8 MiB; a second thread replaces it; then fills 24 MiB and ends */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char **words;
static char *volatile filled;

static void fill(size_t mebibytes) {
  size_t bytes = mebibytes << 20;
  char *memory = malloc(bytes);
  if (!memory) exit(3);
  memset(memory, 1, bytes);
  filled = memory;
}

static void *sleeps(void *unused) {
  (void)unused;
  for (;;) pause();
  return 0;
}

static void *works(void *unused) {
  (void)unused;
  size_t bytes = 200000;
  volatile char *memory = malloc(bytes);
  for (size_t i = 0; memory && i < bytes; i += 4096) memory[i] = 1;
  free((void *)memory);
  return 0;
}

static void *replaces(void *unused) {
  (void)unused;
  struct timespec moment = {0, 2000000};
  nanosleep(&moment, 0);
  execv("/proc/self/exe", words);
  _exit(9);
  return 0;
}

static void start(void *(*body)(void *)) {
  pthread_t thread;
  if (pthread_create(&thread, 0, body, 0)) exit(3);
}

static int exec_again(char **values) {
  int left = atoi(values[3]);
  if (left == 0) return 0;
  char number[16];
  snprintf(number, sizeof number, "%d", left - 1);
  words = (char *[]){values[0], values[1], values[2], number, 0};
  for (int i = 0; i < 4; i++) start(sleeps);
  if (!strcmp(values[2], "main")) replaces(0);
  start(replaces);
  sleeps(0);
  return 9;
}

static int pool(int rounds) {
  pthread_t threads[30];
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < 30; i++) {
      if (pthread_create(&threads[i], 0, works, 0)) return 3;
    }
    for (int i = 0; i < 30; i++) pthread_join(threads[i], 0);
  }
  return 0;
}

int main(int count, char **values) {
  if (count == 4 && !strcmp(values[1], "exec")) return exec_again(values);
  if (count == 3 && !strcmp(values[1], "pool")) return pool(atoi(values[2]));
  if (count == 2 && !strcmp(values[1], "threads")) {
    fill(32);
    for (int i = 0; i < 4; i++) start(sleeps);
    for (volatile long turns = 0;; turns++) {}
  }
  if (count == 2 && !strcmp(values[1], "once")) {
    fill(8);
    words = (char *[]){values[0], "again", 0};
    start(replaces);
    sleeps(0);
  }
  if (count == 2 && !strcmp(values[1], "again")) {
    fill(24);
    return 0;
  }
  return 2;
}
