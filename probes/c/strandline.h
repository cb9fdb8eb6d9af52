/*
 * strandline.h: names an instant of a C or C++ program for `strandline run`.
 *
 *     #include "strandline.h"
 *     strandline_mark("cache filled");
 *     strandline run -o cache.strandline -- ./program
 *
 * Without strandline (no STRANDLINE_MARK_FD in the environment) a mark does nothing: one load and one
 * branch after the first. With it, a mark is six short system calls plus the time that strandline takes
 * for its sample; no allocation, no stdio, errno is kept. Figures: docs/probes.md.
 *
 * C99 or later, C++11 or later, GCC or Clang, Linux. Threads may mark at once: they take turns. So do
 * processes of one tree. It works in the child of a fork. A signal handler may call it (its mark is left
 * out where it interrupts one), and must not longjmp out of it. A header alone: include it in as many
 * files as you like.
 */
#ifndef STRANDLINE_H
#define STRANDLINE_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __cplusplus
#define STRANDLINE_NULL nullptr
extern "C" {
#else
#define STRANDLINE_NULL ((void *)0)
#ifndef __USE_MISC
extern long syscall(long number, ...); /* strict -std=c99 hides it */
#endif
#endif

/* What strict C99 hides of the headers; Linux's own numbers. */
#define STRANDLINE_NAME_BYTES 200
#define STRANDLINE_MSG_NOSIGNAL 0x4000
#define STRANDLINE_SO_DOMAIN 39
#define STRANDLINE_IS_SOCKET(mode) (((mode) & 0170000) == 0140000)
#define STRANDLINE_FUTEX_WAIT_PRIVATE 128
#define STRANDLINE_FUTEX_WAKE_PRIVATE 129

/* One for the whole program, however many files include this: weak definitions are merged. */
struct strandline_state {
    int mode;         /* 0 not looked yet, 1 on, 2 off for ever */
    int fd;           /* the inherited socket */
    dev_t device;     /* which file it was: a descriptor that is another file by now is not ours */
    ino_t inode;
    int lock;         /* 0 free, else the holder's process id times two, plus one where others wait */
};
__attribute__((weak)) struct strandline_state strandline_shared = {0, 0, 0, 0, 0};
/* A signal handler that interrupts a mark of its own thread cannot wait for it: its mark is left out. */
__attribute__((weak)) __thread volatile int strandline_busy = 0;

/* Raw system calls: unlike libc's, no thread is ever cancelled in one while it holds the lock. */
static inline void strandline_wait(int fd, short events) {
    struct pollfd one = {fd, events, 0};
    (void)syscall(SYS_ppoll, &one, 1L, STRANDLINE_NULL, STRANDLINE_NULL, 8L);
}

/* A fork's child finds the lock as it was; its holder stayed in the parent, so the child takes it. */
static inline void strandline_take(struct strandline_state *s, int self) {
    for (;;) {
        int seen = 0;
        if (__atomic_compare_exchange_n(&s->lock, &seen, self * 2, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            return;
        }
        if ((seen >> 1) != self) {
            if (__atomic_compare_exchange_n(&s->lock, &seen, self * 2, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
                return;
            }
            continue;
        }
        if ((seen & 1) == 0 &&
            !__atomic_compare_exchange_n(&s->lock, &seen, seen | 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            continue;
        }
        (void)syscall(SYS_futex, &s->lock, (long)STRANDLINE_FUTEX_WAIT_PRIVATE, (long)(self * 2 + 1),
                      STRANDLINE_NULL);
    }
}

static inline void strandline_give(struct strandline_state *s) {
    if (__atomic_exchange_n(&s->lock, 0, __ATOMIC_RELEASE) & 1) {
        /* All: each that wakes must say anew that it waits. */
        (void)syscall(SYS_futex, &s->lock, (long)STRANDLINE_FUTEX_WAKE_PRIVATE, 0x7fffffffL);
    }
}

/* Processes of one tree share the socket, so they take turns too: else one might read the answer that
 * was meant for another. The kernel lets go of the lock where its holder dies. */
static inline void strandline_turn(int fd, short type) {
#if defined(SYS_fcntl) && __SIZEOF_LONG__ == 8
    struct flock whole;
    memset(&whole, 0, sizeof whole);
    whole.l_type = type;
    while (syscall(SYS_fcntl, (long)fd, (long)F_SETLKW, &whole) == -1 && errno == EINTR) {
    }
#else
    (void)fd;
    (void)type;
#endif
}

static inline int strandline_is_ours(struct strandline_state *s) {
    struct stat now;
    return fstat(s->fd, &now) == 0 && STRANDLINE_IS_SOCKET(now.st_mode) && now.st_dev == s->device &&
           now.st_ino == s->inode;
}

/* Whether there is a strandline to talk to: a number, above the standard descriptors, of a stream
 * socket of the local kind. */
static inline int strandline_look(struct strandline_state *s) {
    const char *text = getenv("STRANDLINE_MARK_FD");
    long fd = 0;
    int domain = 0, type = 0;
    socklen_t domain_bytes = sizeof domain, type_bytes = sizeof type;
    struct stat first;
    if (text == STRANDLINE_NULL || *text == '\0') {
        return 0;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || fd > 100000000) {
            return 0;
        }
        fd = fd * 10 + (*text - '0');
    }
    if (fd < 3 || fstat((int)fd, &first) != 0 || !STRANDLINE_IS_SOCKET(first.st_mode) ||
        getsockopt((int)fd, SOL_SOCKET, STRANDLINE_SO_DOMAIN, &domain, &domain_bytes) != 0 ||
        getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) != 0 || domain != AF_UNIX ||
        type != SOCK_STREAM) {
        return 0;
    }
    s->fd = (int)fd;
    s->device = first.st_dev;
    s->inode = first.st_ino;
    return 1;
}

/* Writes all of a line, then waits for the answer; 0 where there is nobody at the other end. */
static inline int strandline_talk(struct strandline_state *s, const char *line, size_t bytes) {
    while (bytes > 0) {
        long sent = syscall(SYS_sendto, (long)s->fd, line, bytes, (long)STRANDLINE_MSG_NOSIGNAL,
                            STRANDLINE_NULL, 0L);
        if (sent > 0) {
            line += sent;
            bytes -= (size_t)sent;
        } else if (sent == -1 && errno == EAGAIN) {
            strandline_wait(s->fd, POLLOUT);
        } else if (sent == 0 || errno != EINTR) {
            return 0;
        }
    }
    for (;;) {
        char answer;
        long got = syscall(SYS_recvfrom, (long)s->fd, &answer, 1L, 0L, STRANDLINE_NULL, STRANDLINE_NULL);
        if (got == -1 && errno == EAGAIN) {
            strandline_wait(s->fd, POLLIN);
        } else if (got != -1 || errno != EINTR) {
            return got == 1;
        }
    }
}

static inline void strandline_mark_on(struct strandline_state *s, const char *name) {
    char line[STRANDLINE_NAME_BYTES + 1];
    size_t bytes = 0;
    while (bytes < STRANDLINE_NAME_BYTES && name != STRANDLINE_NULL && name[bytes] != '\0') {
        unsigned char byte = (unsigned char)name[bytes];
        line[bytes++] = (char)(byte < 32 || byte == 127 ? ' ' : byte);
    }
    line[bytes++] = '\n';
    strandline_busy = 1;
    strandline_take(s, (int)getpid());
    if (s->mode == 0) {
        s->mode = strandline_look(s) ? 1 : 2;
    }
    if (s->mode == 1 && !strandline_is_ours(s)) {
        s->mode = 2;
    }
    if (s->mode == 1) {
        strandline_turn(s->fd, F_WRLCK);
        if (!strandline_talk(s, line, bytes)) {
            s->mode = 2;
        }
        strandline_turn(s->fd, F_UNLCK);
    }
    strandline_give(s);
    strandline_busy = 0;
}

/* Names this instant; returns when strandline has taken its sample. Control characters of the name
 * become spaces; it is cut to 200 bytes. Does nothing where strandline is not there, or is no more. */
static inline void strandline_mark(const char *name) {
    if (strandline_shared.mode != 2 && !strandline_busy) {
        int kept = errno;
        strandline_mark_on(&strandline_shared, name);
        errno = kept;
    }
}

#ifdef __cplusplus
}
#endif

#endif
