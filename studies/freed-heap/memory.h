// What a process's own memory comes to, read without a single call of malloc.
//
// The author read VmSize and VmRSS of /proc/self/status with fopen, which takes a FILE and its buffer from the heap
// under study and gives them back. Here the files are read with read(2) into a static buffer. VmRSS is approximate on
// kernels since 6.2 (it is counted by CPU and added up late), by more than the small blocks' size: resident bytes are
// Rss of /proc/self/smaps_rollup, which is counted in the page tables. VmRSS is kept beside it, and Anonymous: pages of
// libraries, which the kernel may take and bring back at any time, are not in that. All are bytes.
#ifndef FREED_HEAP_MEMORY_H
#define FREED_HEAP_MEMORY_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct Memory {
    long virtual_bytes;    // VmSize of status
    long physical_bytes;   // Rss of smaps_rollup
    long anonymous_bytes;  // Anonymous of smaps_rollup: without pages of files
    long status_rss_bytes; // VmRSS of status, as the author read it
};

// Reads a small file of /proc whole.
inline const char *slurp(const char *path) {
    static char text[16384];
    size_t bytes = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    while (file >= 0 && bytes + 1 < sizeof text) {
        ssize_t got = read(file, text + bytes, sizeof text - 1 - bytes);
        if (got <= 0) {
            break;
        }
        bytes += static_cast<size_t>(got);
    }
    if (file >= 0) {
        close(file);
    }
    text[bytes] = '\0';
    return text;
}

// The value of a line "NAME:   123 kB", in bytes; -1 where there is none.
inline long line_bytes(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *line = text; line != nullptr && *line != '\0';) {
        if (strncmp(line, name, length) == 0 && line[length] == ':') {
            long kib = 0;
            const char *digit = line + length + 1;
            while (*digit == ' ' || *digit == '\t') {
                digit++;
            }
            for (; *digit >= '0' && *digit <= '9'; digit++) {
                kib = kib * 10 + (*digit - '0');
            }
            return kib * 1024;
        }
        const char *end = strchr(line, '\n');
        line = end == nullptr ? nullptr : end + 1;
    }
    return -1;
}

[[noreturn]] inline void fail(const char *what, const char *which) {
    (void)!write(STDERR_FILENO, what, strlen(what));
    (void)!write(STDERR_FILENO, which, strlen(which));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(2);
}

inline Memory memory_now() {
    Memory now;
    const char *text = slurp("/proc/self/status");
    now.virtual_bytes = line_bytes(text, "VmSize");
    now.status_rss_bytes = line_bytes(text, "VmRSS");
    text = slurp("/proc/self/smaps_rollup");
    now.physical_bytes = line_bytes(text, "Rss");
    now.anonymous_bytes = line_bytes(text, "Anonymous");
    if (now.virtual_bytes < 0 || now.physical_bytes < 0 || now.anonymous_bytes < 0) {
        fail("no VmSize in /proc/self/status, or no /proc/self/smaps_rollup (Linux 4.14)", "");
    }
    return now;
}

// What is printed at the end is gathered in a static buffer: no stdio, so no buffer of its in the heap.
inline void say(const char *format, ...) {
    static char text[1 << 20];
    static size_t bytes = 0;
    if (format == nullptr) {
        for (size_t at = 0; at < bytes;) {
            ssize_t put = write(STDOUT_FILENO, text + at, bytes - at);
            if (put <= 0) {
                _exit(1);
            }
            at += static_cast<size_t>(put);
        }
        bytes = 0;
        return;
    }
    va_list values;
    va_start(values, format);
    int put = vsnprintf(text + bytes, sizeof text - bytes, format, values);
    va_end(values);
    if (put < 0 || bytes + static_cast<size_t>(put) >= sizeof text) {
        _exit(1);
    }
    bytes += static_cast<size_t>(put);
}

// Everything that happens once happens before the first figure: pages of 4 KiB only, and all paths of the readers.
inline void get_ready() {
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    char line[64];
    snprintf(line, sizeof line, "%s %ld %.3f", "x", 1L, 1.0);
    for (int i = 0; i < 3; i++) {
        (void)memory_now();
    }
}

#endif
