/* many_maps MAPPINGS THREADS: so many mappings of two pages, every other one with a page, and so many threads asleep. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void *sleep_on(void *unused) {
  pause();
  return unused;
}

int main(int count, char **values) {
  if (count != 3) return 2;
  for (int i = 0; i < atoi(values[1]); i++) {
    /* Mappings that lie beside each other are one where they are alike. */
    char *at = mmap(0, 8192, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 3;
    if (!(i & 1)) at[0] = 1;
  }
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  for (int i = 0; i < atoi(values[2]); i++) {
    pthread_t thread;
    if (pthread_create(&thread, &small, sleep_on, 0)) return 3;
  }
  puts("ok");
  fflush(stdout);
  pause();
}
