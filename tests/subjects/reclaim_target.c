/* Processes in states that are difficult for `reclaim`. The first argument selects one:
 *
 *   loop N          N threads (the main one among them; 1: it is alone) allocate and free all the
 *                   time; prints "lock ADDRESS" for each arena where N > 1; ends at SIGTERM with
 *                   status 0 if all its blocks kept their contents
 *   seccomp         under a filter that kills for madvise
 *   filtered        under a filter like a container's
 *   tiny            its first thread sleeps uninterruptibly (vfork), the second has a tiny stack
 *   deep            its only thread waits in pause with 160 KiB of locals, of which it has written
 *                   none: the kernel has not mapped more of its stack
 *   deep limited    the same, and its stack may not grow further
 *   deep locked     the same as deep, with all its memory locked
 *   deep guarded    the same as deep, with a guard right below its stack
 *   deep blocked    the same as deep, with its own data there; at the end of standard input it
 *                   prints how many bytes of them have changed
 *   coroutine       its only thread runs on memory from malloc
 *   alternate       its only thread is in a signal handler on an alternate stack
 *   wait CALL       waits in CALL; prints "EINTR" when a SIGUSR1 handler ended it, "done" when CALL
 *                   came to its own end (read-restart: the handler asks for a restart)
 *   wait CALL KIND  the same; at SIGUSR2 another thread sends SIGUSR1 to the waiting one. With KIND
 *                   collector the handler restarts calls and blocks all signals, and the program
 *                   prints "within" too if the handler ran in a call; with KIND plain it does
 *                   neither. With KIND flush the other thread ignores SIGURG, SIGWINCH and SIGCHLD
 *                   briefly
 *   holes N         waits in nanosleep, with N free blocks of 12 KiB between others
 *   zero MIB        has MIB of written zeros, into which threads write, read back and write zeros
 *                   again; ends at the end of standard input with status 0 if no word was lost
 *   abort           has a damaged heap, which malloc_trim detects
 *   count           counts signals SIGRTMIN and prints their number at the end of standard input
 *
 * All print "ready" first.  cc -O1 -pthread reclaim_target.c -o reclaim_target */
#define _GNU_SOURCE
#include "filters.h"
#include <errno.h>
#include <pthread.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static atomic_int stopping, running;
static atomic_long bad;
static void *arena;

static void on_term(int signal) { (void)signal; stopping = 1; }

static uintptr_t volatile handled_at;
static void on_usr1(int signal) {
    (void)signal;
    handled_at = (uintptr_t)__builtin_frame_address(0);
}

/* Prints without malloc: one of the heaps may be damaged. */
static void ready(void) {
    fflush(stdout);
    if (write(1, "ready\n", 6) != 6) _exit(3);
}

static void *churn(void *argument) {
    enum { SLOTS = 32 };
    unsigned char *slot[SLOTS] = {0};
    size_t length[SLOTS];
    uint64_t state = (uintptr_t)argument + 1;
    void *block = malloc(2000);
    if (argument) arena = *(void **)((uintptr_t)block & ~(uintptr_t)0x3ffffff);
    free(block);
    running++;
    while (!stopping) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned i = (unsigned)(state >> 33) % SLOTS;
        if (slot[i]) {
            if (slot[i][0] != i || slot[i][length[i] - 1] != i) bad++;
            free(slot[i]);
            slot[i] = NULL;
        } else {
            length[i] = 1 + (state >> 40) % 5000;
            slot[i] = malloc(length[i]);
            slot[i][0] = slot[i][length[i] - 1] = (unsigned char)i;
        }
    }
    return NULL;
}

static int loop(int threads) {
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    pthread_t others[64];
    for (int i = 1; i < threads; i++) pthread_create(&others[i], NULL, churn, (void *)(uintptr_t)i);
    while (running < threads - 1) usleep(1000);
    /* glibc 2.26 to 2.41: an arena begins with its mutex and points to the next arena at 0x870. */
    for (void *a = arena, *next = NULL; a && next != arena; a = next) {
        printf("lock %lx\n", (unsigned long)a);
        next = *(void **)((char *)a + 0x870);
    }
    ready();
    churn(NULL);
    for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
    return bad != 0;
}

static int filtered(int (*put)(void)) {
    static char *blocks[20000];
    for (int i = 0; i < 20000; i++) blocks[i] = memset(malloc(300), 1, 300);
    for (int i = 0; i < 19999; i++) free(blocks[i]);
    if (put()) return 3;
    ready();
    pause();
    return 0;
}

static void *sleeper(void *argument) {
    (void)argument;
    running++;
    pause();
    return NULL;
}

static int tiny(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, sleeper, NULL)) return 3;
    while (running < 1) usleep(1000);
    ready();
    pid_t self = getpid(), child = vfork();
    if (child == 0) {
        /* The parent waits until this child ends; the child ends with its parent, even one that
         * ended before prctl. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int seconds = 0; seconds < 100 && getppid() == self; seconds++) sleep(1);
        _exit(0);
    }
    return 0;
}

/* Start of the mapping of the main stack. */
static char *stack_start(void) {
    char line[512];
    unsigned long start = 0, now;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]") && sscanf(line, "%lx", &now) == 1) start = now;
    fclose(maps);
    return (char *)start;
}

/* Grows the stack further than the calls after stack_start() do, which would write below its start. */
static __attribute__((noinline)) void grow_stack(void) {
    volatile char below[6 << 10];
    below[0] = 1;
}

static int deep(const char *with) {
    enum { BYTES = 1 << 20 };
    volatile char locals[160 << 10];
    __asm__ volatile("" : : "r"(locals) : "memory");
    grow_stack();
    char *start = stack_start();
    if (strcmp(with, "limited") == 0) {
        struct rlimit limit;
        getrlimit(RLIMIT_STACK, &limit);
        limit.rlim_cur = 4096;
        setrlimit(RLIMIT_STACK, &limit);
    } else if (strcmp(with, "locked") == 0) {
        if (mlockall(MCL_CURRENT | MCL_FUTURE)) return 3;
    } else if (strcmp(with, "guarded") == 0 || strcmp(with, "blocked") == 0) {
        int protection = strcmp(with, "blocked") == 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        if (mmap(start - BYTES, BYTES, protection, flags, -1, 0) == MAP_FAILED) return 3;
        if (protection != PROT_NONE) memset(start - BYTES, 0x5a, BYTES);
    }
    ready();
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    long changed = 0;
    if (strcmp(with, "blocked") == 0)
        for (long i = 0; i < BYTES; i++) changed += start[i - BYTES] != 0x5a;
    printf("%ld\n", changed);
    return 0;
}

static ucontext_t home, away;
static void on_coroutine(void) { ready(); for (;;) pause(); }
static int coroutine(void) {
    getcontext(&away);
    away.uc_stack.ss_sp = malloc(1 << 20);
    away.uc_stack.ss_size = 1 << 20;
    away.uc_link = &home;
    makecontext(&away, on_coroutine, 0);
    swapcontext(&home, &away);
    return 0;
}

static void on_alternate(int signal) { (void)signal; ready(); for (;;) pause(); }
static int alternate(void) {
    stack_t stack = {.ss_sp = malloc(1 << 20), .ss_size = 1 << 20};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = on_alternate, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    return 0;
}

static pthread_t waiting;
static void *answer_usr2(void *kind) {
    sigset_t usr2;
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    int number;
    while (sigwait(&usr2, &number) == 0) {
        if (strcmp(kind, "flush") != 0) {
            pthread_kill(waiting, SIGUSR1);
            continue;
        }
        for (int i = 0; i < 3; i++) {
            int flushed = (int[]){SIGURG, SIGWINCH, SIGCHLD}[i];
            signal(flushed, SIG_IGN);
            signal(flushed, SIG_DFL);
        }
    }
    return NULL;
}

static int wait_in(const char *call, const char *kind) {
    struct sigaction action = {.sa_handler = on_usr1};
    if (kind) {
        if (strcmp(kind, "collector") == 0) {
            action.sa_flags = SA_RESTART;
            sigfillset(&action.sa_mask);
        }
        sigset_t usr2;
        sigemptyset(&usr2);
        sigaddset(&usr2, SIGUSR2);
        pthread_sigmask(SIG_BLOCK, &usr2, NULL);
        waiting = pthread_self();
        pthread_t other;
        if (pthread_create(&other, NULL, answer_usr2, (void *)kind)) return 3;
    }
    if (strcmp(call, "read-restart") == 0) action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    sigset_t none, usr1;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    char byte;
    long got = -1;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    raise(SIGUSR1);
    /* Below a call there are two signal frames. */
    uintptr_t lowest = here - (here - handled_at) * 3 / 2;
    ready();
    if (strncmp(call, "read", 4) == 0) got = read(0, &byte, 1);
    else if (strcmp(call, "pause") == 0) got = pause();
    else if (strcmp(call, "nanosleep") == 0) got = nanosleep(&(struct timespec){3000, 0}, NULL);
    else if (strcmp(call, "poll") == 0) got = poll(&(struct pollfd){0, POLLIN, 0}, 1, 3000000);
    else if (strcmp(call, "epoll") == 0) {
        int e = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        epoll_ctl(e, EPOLL_CTL_ADD, 0, &event);
        got = epoll_wait(e, &event, 1, -1);
    } else if (strcmp(call, "epoll_pwait") == 0) {
        sigprocmask(SIG_BLOCK, &usr1, NULL);
        int e = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        epoll_ctl(e, EPOLL_CTL_ADD, 0, &event);
        got = epoll_pwait(e, &event, 1, -1, &none);
    } else if (strcmp(call, "sigsuspend") == 0) {
        sigprocmask(SIG_BLOCK, &usr1, NULL);
        got = sigsuspend(&none);
    }
    int is_within = kind && strcmp(kind, "collector") == 0 && handled_at < lowest;
    printf("%s%s\n", got == -1 && errno == EINTR ? "EINTR" : "done", is_within ? " within" : "");
    return 0;
}

static int holes(int count) {
    enum { BYTES = 12 << 10 };
    char **blocks = malloc(2 * (size_t)count * sizeof *blocks);
    for (int i = 0; i < 2 * count; i++) blocks[i] = memset(malloc(BYTES), 1, BYTES);
    for (int i = 0; i < 2 * count; i += 2) free(blocks[i]);
    return wait_in("nanosleep", NULL);
}

static unsigned char *zeros;
static size_t zero_bytes;
static void *scribble(void *argument) {
    long me = (long)(intptr_t)argument;
    uint64_t state = (uint64_t)me;
    running++;
    while (!stopping) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        /* Each thread has its own word of a page and keeps it zero most of the time. */
        volatile uint64_t *word = (uint64_t *)(zeros + ((state >> 20) % (zero_bytes / 4096)) * 4096) + me;
        *word = state;
        if (state >> 60 == 0) usleep(50);
        if (*word != state) bad++;
        *word = 0;
    }
    return NULL;
}

static int zero(size_t mib) {
    zero_bytes = mib << 20;
    zeros = mmap(NULL, zero_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(zeros, 1, zero_bytes);
    memset(zeros, 0, zero_bytes);
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, scribble, (void *)i);
    while (running < 4) usleep(1000);
    printf("range %lx %lx\n", (unsigned long)zeros, (unsigned long)(zeros + zero_bytes));
    ready();
    char byte;
    while (read(0, &byte, 1) > 0) {}
    stopping = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (size_t at = 0; at < zero_bytes; at++) if (zeros[at]) bad++;
    if (bad) fprintf(stderr, "%ld words were lost\n", (long)bad);
    return bad != 0;
}

static int damaged(void) {
    char *volatile a = malloc(2000), *volatile b = malloc(2000), *volatile c = malloc(2000);
    free(b);
    for (int i = 0; i < 2000 + 40; i++) ((volatile char *)a)[i] = 0x41;
    (void)c;
    ready();
    pause();
    return 0;
}

static volatile long counted;
static void on_realtime(int signal) { (void)signal; counted++; }
static int count(void) {
    struct sigaction action = {.sa_handler = on_realtime, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    ready();
    char byte;
    while (read(0, &byte, 1) > 0) {}
    printf("%ld\n", counted);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *what = argv[1], *more = argc > 2 ? argv[2] : "1";
    if (strcmp(what, "loop") == 0) return loop(atoi(more));
    if (strcmp(what, "seccomp") == 0) return filtered(put_deadly_filter);
    if (strcmp(what, "filtered") == 0) return filtered(put_container_filter);
    if (strcmp(what, "tiny") == 0) return tiny();
    if (strcmp(what, "deep") == 0) return deep(more);
    if (strcmp(what, "coroutine") == 0) return coroutine();
    if (strcmp(what, "alternate") == 0) return alternate();
    if (strcmp(what, "wait") == 0) return wait_in(more, argc > 3 ? argv[3] : NULL);
    if (strcmp(what, "holes") == 0) return holes(atoi(more));
    if (strcmp(what, "zero") == 0) return zero((size_t)atoi(more));
    if (strcmp(what, "count") == 0) return count();
    if (strcmp(what, "abort") == 0) return damaged();
    return 2;
}
