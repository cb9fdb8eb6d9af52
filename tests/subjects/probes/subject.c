/* Grows by 64 MiB at a mark and gives it back at the next; status 7. C99 and C++11 alike. */
#include <strandline.h>

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1024UL * 1024UL)

static void *in_thread(void *count) {
    long left;
    for (left = *(long *)count; left > 0; left--) {
        strandline_mark("quiet");
    }
    return (void *)0;
}

/* Eight threads and two processes send marks at once: every mark is answered, and none hangs. */
static int crowd(long count) {
    pthread_t threads[8];
    int status = 0, failed = 0, i;
    pid_t child;
    for (i = 0; i < 4; i++) {
        failed += pthread_create(&threads[i], (pthread_attr_t *)0, in_thread, &count);
    }
    /* Forks while other threads hold the lock. */
    child = fork();
    if (child == 0) {
        in_thread(&count);
        _exit(3);
    }
    for (i = 4; i < 8; i++) {
        failed += pthread_create(&threads[i], (pthread_attr_t *)0, in_thread, &count);
    }
    for (i = 0; i < 8; i++) {
        failed += pthread_join(threads[i], (void **)0);
    }
    failed += waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3;
    strandline_mark("after");
    return failed ? 1 : 7;
}

int main(int argc, char **argv) {
    char long_name[301];
    char *memory;
    long count = argc > 2 ? atol(argv[2]) : 0;
    if (argc > 2 && strcmp(argv[1], "crowd") == 0) {
        return crowd(count);
    }
    if (argc > 2 && strcmp(argv[1], "loop") == 0) {
        strandline_mark("before");
        in_thread(&count);
        strandline_mark("after");
        return 7;
    }
    strandline_mark("start");
    if (argc > 2 && strcmp(argv[1], "reuse") == 0) {
        int fd = open(argv[2], O_RDWR | O_CREAT, 0600);
        dup2(fd, atoi(getenv("STRANDLINE_MARK_FD")));
    }
    memory = (char *)mmap((void *)0, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == (char *)MAP_FAILED) {
        return 1;
    }
    memset(memory, 1, 64 * MIB);
    errno = 77;
    strandline_mark("grown");
    count = errno;
    munmap(memory, 64 * MIB);
    strandline_mark("freed");
    strandline_mark("two\nlines\x01");
    memset(long_name, 'n', 300);
    long_name[300] = '\0';
    strandline_mark(long_name);
    printf("done %ld\n", count);
    return 7;
}
