/* Pairs of threads that send a byte to and fro over pipes. At each turn a thread adds one to the
 * first of two words, works for a while, and adds one to the second: where the two differ, the
 * thread was running. Prints the address of the words and the number of threads.
 * ARGUMENTS: the number of pairs, and the longest nap before a turn in microseconds. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_PAIRS 64
static volatile uint64_t words[2 * MAX_PAIRS][2];
static int pipes[2 * MAX_PAIRS][2];
static unsigned longest_nap;

static void *turn(void *argument) {
  uintptr_t own = (uintptr_t)argument;
  unsigned random = (unsigned)own * 2654435761u + 1;
  char byte = 0;
  for (;;) {
    if (read(pipes[own][0], &byte, 1) != 1) return 0;
    words[own][0]++;
    random = random * 1664525u + 1013904223u;
    for (volatile unsigned work = random >> 22; work; work--) continue;
    words[own][1]++;
    if (longest_nap && random % 4 == 0) usleep(random / 7 % longest_nap);
    if (write(pipes[own ^ 1][1], &byte, 1) != 1) return 0;
  }
}

int main(int count, char **values) {
  int pairs = count > 1 ? atoi(values[1]) : 1;
  if (pairs > MAX_PAIRS) return 2;
  longest_nap = count > 2 ? (unsigned)atoi(values[2]) : 0;
  for (int i = 0; i < 2 * pairs; i++)
    if (pipe(pipes[i])) return 3;
  for (uintptr_t i = 0; i < 2 * (uintptr_t)pairs; i++) {
    pthread_t id;
    if (pthread_create(&id, 0, turn, (void *)i)) return 3;
  }
  for (int i = 0; i < pairs; i++)
    if (write(pipes[2 * i][1], "", 1) != 1) return 3;
  printf("%lu %d\n", (unsigned long)(uintptr_t)words, 2 * pairs);
  fflush(stdout);
  char end;
  return read(0, &end, 1) < 0;
}
