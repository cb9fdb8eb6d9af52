// Preloaded into Node.js: a thread of an addon, which waits for work as libuv's own do, by libuv's
// function.
#include <pthread.h>
#include <stdlib.h>

extern int uv_cond_init(void *);
extern void uv_cond_wait(void *, void *);
extern int uv_mutex_init(void *);
extern void uv_mutex_lock(void *);

// Larger than uv_cond_t and uv_mutex_t.
static _Alignas(16) char condition[64], mutex[64];

static void *wait_for_work(void *unused) {
    uv_mutex_lock(mutex);
    for (;;) uv_cond_wait(condition, mutex);
    return unused;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    // Not in the program's children, which have no libuv.
    unsetenv("LD_PRELOAD");
    if (uv_cond_init(condition) || uv_mutex_init(mutex) || pthread_create(&thread, 0, wait_for_work, 0)) abort();
}
