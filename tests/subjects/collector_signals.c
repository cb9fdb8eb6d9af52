/* A program with libgc (Boehm's collector). One thread collects without end: libgc stops all others
 * by a signal and waits for their answers, while they allocate from malloc. Prints the number of
 * collections and failures after each command and at the end; prints "missing" without libgc.so.1.
 * With an argument its first thread waits for commands in poll(2), which the kernel continues by
 * restart_syscall(2).
 */
#include "subject.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>

enum { WORKERS = 3, BYTES = 1 << 20 };

static _Atomic uint64_t collections, wrong;
static void (*collect)(void);
static void *(*allocate)(size_t);

/* Grows and shrinks its arena with each block, so that it spends nearly all time in the kernel with
 * the arena's lock. A free block below a small live one can be released.
 */
static void *work(void *unused) {
  char *below = malloc(BYTES);
  if (!below || !opaque(malloc(100))) _exit(3);
  for (;;) {
    memset(opaque(below), 1, BYTES);
    free(below);
    for (int i = 0; i < 40; i++) {
      char *block = malloc(2 * BYTES);
      if (!block) atomic_fetch_add(&wrong, 1);
      block[0] = block[BYTES] = 1;
      free(opaque(block));
    }
    if (!allocate(100) || !(below = malloc(BYTES))) atomic_fetch_add(&wrong, 1);
  }
  return unused;
}

static void *collect_on(void *unused) {
  for (;;) {
    collect();
    atomic_fetch_add(&collections, 1);
  }
  return unused;
}

static int is_polling(void) {
  struct pollfd input = {.fd = 0, .events = POLLIN};
  while (poll(&input, 1, 600 * 1000) <= 0) {}
  return 1;
}

int main(int count, char **arguments) {
  (void)arguments;
  void *gc = dlopen("libgc.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!gc) {
    puts("missing\nready");
    fflush(stdout);
    hold_until_quit();
  }
  void (*init)(void);
  int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  *(void **)&collect = dlsym(gc, "GC_gcollect");
  *(void **)&allocate = dlsym(gc, "GC_malloc");
  *(void **)&init = dlsym(gc, "GC_init");
  *(void **)&create = dlsym(gc, "GC_pthread_create");
  if (!collect || !allocate || !init || !create) return 3;
  if (!mallopt(M_MMAP_THRESHOLD, 16 << 20) || !mallopt(M_TRIM_THRESHOLD, 0) || !mallopt(M_TOP_PAD, 0)) return 3;
  init();
  pthread_t id;
  for (int i = 0; i < WORKERS; i++)
    if (create(&id, 0, work, 0)) return 3;
  if (create(&id, 0, collect_on, 0)) return 3;
  while (atomic_load(&collections) < 10) usleep(1000);
  puts("ready");
  fflush(stdout);
  if (count > 1) is_polling();
  answer_until_quit("collections", &collections, &wrong);
  printf("%lu %lu\n", (unsigned long)atomic_load(&collections), (unsigned long)atomic_load(&wrong));
  fflush(stdout);
  _exit(0);
}
