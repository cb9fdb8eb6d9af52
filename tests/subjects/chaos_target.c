/* A process that detects interference. Twelve threads do work with known results in every kind of
 * system call that waits; each checks its results and counts its EINTRs.
 *
 * Prints "lock ADDRESS" for each arena's mutex, "thread NAME TID" for each thread, then "ready".
 * Runs until its standard input ends. Prints "eintr NAME COUNT" and exits with status 0 if all
 * results were right, 1 if not.
 *
 * cc -O1 -pthread chaos_target.c -o chaos_target -lm */
#define _GNU_SOURCE
#include <errno.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 12 };

struct worker {
    const char *name;
    void (*step)(struct worker *);
    long eintr, steps, wrong;
    pid_t tid;
    pthread_t thread;
    uint64_t state;
    void *arena;
};

static atomic_int stopping, started;
static atomic_long ticks;
static int quiet_pipe[2], byte_pipe[2];

static void wrong(struct worker *w, const char *what) {
    if (w->wrong++ < 5) fprintf(stderr, "%s: %s (errno %d)\n", w->name, what, errno);
}

static void on_alarm(int signal) {
    (void)signal;
    int saved = errno;
    /* Dirties vector and x87 registers, as a real handler may. */
    volatile double x = 1.5;
    for (int i = 0; i < 20; i++) x = x * 1.0000001 + 0.5;
    ticks++;
    errno = saved;
}

/* Keeps running values in x87, SSE and, where there is AVX2, YMM registers. */
__attribute__((target("avx2"), noinline)) static double ymm_work(void) {
    __m256d a = _mm256_set_pd(1, 2, 3, 4), b = _mm256_set1_pd(1.0000001), c = _mm256_set1_pd(0.25);
    for (int i = 0; i < 20000; i++) a = _mm256_add_pd(_mm256_mul_pd(a, b), c);
    double out[4];
    _mm256_storeu_pd(out, a);
    return out[0] + 3 * out[1] + 5 * out[2] + 7 * out[3];
}
__attribute__((noinline)) static double sse_work(void) {
    double a = 1, b = 2, c = 3, d = 4;
    for (int i = 0; i < 20000; i++) {
        a = a * 1.0000001 + 0.1; b = b * 0.9999999 + a; c = c + b * 1e-9; d = d + c * 1e-9;
    }
    return a + b + c + d;
}
__attribute__((noinline)) static double x87_work(void) {
    long double a = 1, b = 2;
    for (int i = 0; i < 10000; i++) { a = a * 1.0000001L + 0.1L; b = b + a * 1e-9L; }
    return (double)(a + b);
}
static double float_work(void) {
    double sum = sse_work() + x87_work();
    if (__builtin_cpu_supports("avx2")) sum += ymm_work();
    return sum;
}
static double float_expected;
static void step_float(struct worker *w) {
    if (float_work() != float_expected) wrong(w, "floating-point sum differs");
}

static void step_nanosleep(struct worker *w) {
    struct timespec t = {0, 3000000};
    if (nanosleep(&t, NULL) == -1) { if (errno == EINTR) w->eintr++; else wrong(w, "nanosleep"); }
}
static void step_poll(struct worker *w) {
    struct pollfd p = {quiet_pipe[0], POLLIN, 0};
    int got = poll(&p, 1, 4);
    if (got == -1 && errno == EINTR) w->eintr++; else if (got != 0) wrong(w, "poll");
}
static void step_select(struct worker *w) {
    fd_set set; FD_ZERO(&set); FD_SET(quiet_pipe[0], &set);
    struct timeval t = {0, 4000};
    int got = select(quiet_pipe[0] + 1, &set, NULL, NULL, &t);
    if (got == -1 && errno == EINTR) w->eintr++; else if (got != 0) wrong(w, "select");
}
static void step_epoll(struct worker *w) {
    if (!w->state) {
        int e = epoll_create1(0);
        struct epoll_event event = {EPOLLIN, {0}};
        epoll_ctl(e, EPOLL_CTL_ADD, quiet_pipe[0], &event);
        w->state = (uint64_t)e;
    }
    struct epoll_event event;
    int got = epoll_wait((int)w->state, &event, 1, 5);
    if (got == -1 && errno == EINTR) w->eintr++; else if (got != 0) wrong(w, "epoll_wait");
}
static void step_futex(struct worker *w) {
    int word = 7;
    struct timespec t = {0, 3000000};
    long got = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 7, &t, NULL, 0);
    if (got == -1 && errno == EINTR) w->eintr++;
    else if (got != -1 || errno != ETIMEDOUT) wrong(w, "futex");
}
static void step_condition(struct worker *w) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 4000000;
    if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
    pthread_mutex_lock(&mutex);
    int got;
    do got = pthread_cond_timedwait(&condition, &mutex, &t); while (got == 0);
    pthread_mutex_unlock(&mutex);
    if (got == EINTR) w->eintr++; else if (got != ETIMEDOUT) wrong(w, "pthread_cond_timedwait");
}
static void step_read(struct worker *w) {
    unsigned char byte;
    ssize_t got = read(byte_pipe[0], &byte, 1);
    if (got == -1 && errno == EINTR) { w->eintr++; return; }
    if (got == 0) { usleep(1000); return; }
    if (got != 1 || byte != (unsigned char)w->state) wrong(w, "read another byte");
    w->state = byte + 1u;
}
static void step_malloc(struct worker *w) {
    enum { SLOTS = 64 };
    static unsigned char *slot[SLOTS];
    static size_t length[SLOTS];
    for (int i = 0; i < 200; i++) {
        w->state = w->state * 6364136223846793005u + 1442695040888963407u;
        unsigned index = (unsigned)(w->state >> 33) % SLOTS;
        if (slot[index]) {
            unsigned char mark = (unsigned char)(index * 7);
            if (slot[index][0] != mark || slot[index][length[index] - 1] != mark) wrong(w, "a block changed");
            free(slot[index]);
            slot[index] = NULL;
        } else {
            length[index] = 1 + (w->state >> 40) % ((index & 7) == 0 ? 60000 : 600);
            slot[index] = malloc(length[index]);
            memset(slot[index], (int)(unsigned char)(index * 7), length[index]);
        }
    }
}
static void step_clock_nanosleep(struct worker *w) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += 5000000;
    if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
    int got = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    if (got == EINTR) w->eintr++; else if (got) wrong(w, "clock_nanosleep");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!got && (now.tv_sec < t.tv_sec || (now.tv_sec == t.tv_sec && now.tv_nsec < t.tv_nsec))) wrong(w, "woke early");
}
static void step_sigtimedwait(struct worker *w) {
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR2);
    struct timespec t = {0, 5000000};
    int got = sigtimedwait(&set, NULL, &t);
    if (got == -1 && errno == EINTR) w->eintr++; else if (got != -1 || errno != EAGAIN) wrong(w, "sigtimedwait");
}
static void step_small_stack(struct worker *w) {
    volatile unsigned char mine[4096];
    for (unsigned i = 0; i < sizeof mine; i++) mine[i] = (unsigned char)(i * 31 + w->steps);
    struct timespec t = {0, 2000000};
    if (nanosleep(&t, NULL) == -1) w->eintr++;
    for (unsigned i = 0; i < sizeof mine; i++)
        if (mine[i] != (unsigned char)(i * 31 + w->steps)) { wrong(w, "its stack changed"); break; }
}

static struct worker workers[THREADS] = {
    {.name = "float", .step = step_float},
    {.name = "nanosleep", .step = step_nanosleep},
    {.name = "poll", .step = step_poll},
    {.name = "select", .step = step_select},
    {.name = "epoll_wait", .step = step_epoll},
    {.name = "futex", .step = step_futex},
    {.name = "condition", .step = step_condition},
    {.name = "read", .step = step_read},
    {.name = "malloc", .step = step_malloc},
    {.name = "clock_nanosleep", .step = step_clock_nanosleep},
    {.name = "sigtimedwait", .step = step_sigtimedwait},
    {.name = "small_stack", .step = step_small_stack},
};

static void *run(void *argument) {
    struct worker *w = argument;
    sigset_t set; sigemptyset(&set);
    /* The alarm's handler interrupts computing, malloc and a restarting read; never a timed wait.
     */
    sigaddset(&set, SIGUSR2);
    if (w->step != step_float && w->step != step_malloc && w->step != step_read) sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    w->tid = gettid();
    void *block = malloc(100000);
    memset(block, 1, 100000);
    /* A secondary arena's heap begins at a multiple of 64 MiB with a pointer to the arena. */
    w->arena = *(void **)((uintptr_t)block & ~(uintptr_t)0x3ffffff);
    free(block);
    started++;
    while (!stopping) { w->step(w); w->steps++; }
    return NULL;
}

/* glibc 2.26 to 2.41: an arena begins with its mutex and points to the next arena at 0x870. */
static void print_locks(void) {
    void *arena = workers[8].arena;
    void *first = arena;
    for (int i = 0; i < 100; i++) {
        printf("lock %lx\n", (unsigned long)arena);
        arena = *(void **)((char *)arena + 0x870);
        if (arena == first) return;
    }
    abort();
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    float_expected = float_work();
    if (pipe(quiet_pipe) || pipe(byte_pipe)) return 3;
    /* Free pages between live ones, which malloc_trim can release. */
    enum { PIECES = 400 };
    static void *live[PIECES];
    for (int i = 0; i < PIECES; i++) {
        void *hole = malloc(20000);
        memset(hole, 1, 20000);
        live[i] = malloc(500);
        free(hole);
        memset(live[i], i & 0xff, 500);
    }
    sigset_t all; sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    for (int i = 0; i < THREADS; i++) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        if (workers[i].step == step_small_stack) pthread_attr_setstacksize(&attributes, 32768);
        if (pthread_create(&workers[i].thread, &attributes, run, &workers[i])) return 3;
    }
    while (started < THREADS) usleep(1000);
    struct itimerval timer = {{0, 10000}, {0, 10000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    print_locks();
    for (int i = 0; i < THREADS; i++) printf("thread %s %d\n", workers[i].name, workers[i].tid);
    printf("ready\n");

    unsigned char byte = 0;
    for (;;) {
        struct pollfd p = {0, POLLIN, 0};
        if (poll(&p, 1, 1) == 1) {
            char rest[64];
            if (read(0, rest, sizeof rest) == 0) break;
        }
        if (write(byte_pipe[1], &byte, 1) == 1) byte++;
    }
    stopping = 1;
    close(byte_pipe[1]);
    long bad = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        printf("eintr %s %ld\n", workers[i].name, workers[i].eintr);
        bad += workers[i].wrong;
        if (workers[i].steps == 0) { fprintf(stderr, "%s did nothing\n", workers[i].name); bad++; }
    }
    for (int i = 0; i < PIECES; i++)
        for (int j = 0; j < 500; j++)
            if (((unsigned char *)live[i])[j] != (i & 0xff)) bad++;
    if (ticks == 0) { fprintf(stderr, "the timer never ran\n"); bad++; }
    printf("ticks %ld\n", (long)ticks);
    return bad != 0;
}
