// said: what the allocator behind malloc says of itself, and what it says on standard error when a program starts.
//
// Starts itself once more with its standard error in a pipe, where jemalloc, for one, complains of options that it does
// not know, before main. Prints one JSON object: `said`, the first 180 bytes of that (empty: nothing was complained of);
// `version`: jemalloc's mallctl("version"), else gnu_get_libc_version(); `oversize_threshold_bytes`: jemalloc's
// opt.oversize_threshold, null where there is none; `mallopt_returned` (see ways.h); `start_virtual_bytes`.
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <sys/wait.h>

#include "ways.h"

using Mallctl = int (*)(const char *, void *, size_t *, void *, size_t);

// Copies what can stand in a JSON text as it is; other bytes become spaces.
static void copy_plain(char *to, const char *from, size_t most) {
    size_t at = 0;
    for (; at < most && from[at] != '\0'; at++) {
        char byte = from[at];
        to[at] = byte < ' ' || byte > '~' || byte == '"' || byte == '\\' ? ' ' : byte;
    }
    while (at > 0 && to[at - 1] == ' ') {
        at--;
    }
    to[at] = '\0';
}

static void hear(char *heard, size_t most) {
    int ends[2];
    if (pipe(ends) != 0) {
        fail("no pipe", "");
    }
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "said", "nothing", static_cast<char *>(nullptr));
        _exit(127);
    }
    close(ends[1]);
    size_t bytes = 0;
    for (ssize_t got; bytes < most && (got = read(ends[0], heard + bytes, most - bytes)) > 0;) {
        bytes += static_cast<size_t>(got);
    }
    heard[bytes] = '\0';
    close(ends[0]);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fail("said could not be started again", "");
    }
}

int main(int count, char **) {
    if (count > 1) {
        free(malloc(1));
        return 0;
    }
    long start_virtual = memory_now().virtual_bytes;
    static char heard[512], said[256], version[64];
    hear(heard, sizeof heard - 1);
    copy_plain(said, heard, 180);
    const char *name = gnu_get_libc_version();
    size_t bytes = sizeof name, threshold = 0;
    bool told = false;
    Mallctl mallctl = reinterpret_cast<Mallctl>(dlsym(RTLD_DEFAULT, "mallctl"));
    if (mallctl != nullptr) {
        mallctl("version", &name, &bytes, nullptr, 0);
        bytes = sizeof threshold;
        told = mallctl("opt.oversize_threshold", &threshold, &bytes, nullptr, 0) == 0;
    }
    copy_plain(version, name, sizeof version - 1);
    say("{\"said\":\"%s\",\"version\":\"%s\",\"start_virtual_bytes\":%ld,", said, version, start_virtual);
    if (told) {
        say("\"oversize_threshold_bytes\":%zu,", threshold);
    } else {
        say("\"oversize_threshold_bytes\":null,");
    }
    say("\"mallopt_returned\":%d}\n", apply_mallopt());
    say(nullptr);
    return 0;
}
