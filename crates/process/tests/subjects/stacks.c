/* A process with four threads of known stacks: prints "LOW HIGH" of each, as reported by
 * pthread_getattr_np (without the guard), then "ready". One thread's stack is small, one has a
 * large guard. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_barrier_t running;

static void *wait_for_ever(void *argument) {
    pthread_barrier_wait(&running);
    for (;;) pause();
    return argument;
}

int main(void) {
    size_t sizes[] = {64 << 10, 256 << 10, 1 << 20, 8 << 20}, guards[] = {4096, 65536, 4096, 0};
    pthread_barrier_init(&running, NULL, 5);
    for (int index = 0; index < 4; index++) {
        pthread_t thread;
        pthread_attr_t attributes;
        void *low;
        size_t size, guard;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, sizes[index]);
        pthread_attr_setguardsize(&attributes, guards[index]);
        if (pthread_create(&thread, &attributes, wait_for_ever, NULL)) return 1;
        if (pthread_getattr_np(thread, &attributes)) return 1;
        pthread_attr_getstack(&attributes, &low, &size);
        pthread_attr_getguardsize(&attributes, &guard);
        printf("%lx %lx\n", (long)low, (long)low + (long)size);
    }
    pthread_barrier_wait(&running); /* every thread is on its own stack */
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
