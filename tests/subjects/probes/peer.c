/* Measures a mark: runs a command, answers its marks at once, and prints the cost of one.
 *
 *     peer COMMAND...      with the marks of a loop named "quiet", between "before" and "after"
 *
 * Prints the count, the CPU time of the command (user and system, without its waits), and the
 * median time between two marks, which includes the switch to this process and back. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 1000000

static double gaps[MOST];

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* CPU time and VmData of the command, which waits for its answer. */
static void state(pid_t pid, double *cpu, long *data) {
    char path[64], line[1024];
    unsigned long user = 0, system = 0;
    FILE *file;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if ((file = fopen(path, "r"))) {
        /* No subject's name has a space or a parenthesis. */
        if (fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) {
            user = system = 0;
        }
        fclose(file);
    }
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    if ((file = fopen(path, "r"))) {
        while (fgets(line, sizeof line, file)) {
            sscanf(line, "VmData: %ld", data);
        }
        fclose(file);
    }
    *cpu = (double)(user + system) * 1e6 / (double)sysconf(_SC_CLK_TCK);
}

int main(int argc, char **argv) {
    int ends[2], status = 0;
    long count = 0, data_before = 0, data_after = 0;
    double last = 0, cpu_before = 0, cpu_after = 0;
    char line[256];
    pid_t pid;
    if (argc < 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || (pid = fork()) < 0) {
        return 3;
    }
    if (pid == 0) {
        dup2(ends[1], 7);
        setenv("STRANDLINE_MARK_FD", "7", 1);
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    close(ends[1]);
    for (;;) {
        double at;
        ssize_t got = read(ends[0], line, sizeof line - 1);
        if (got <= 0) {
            break;
        }
        at = now();
        line[got] = '\0';
        if (strncmp(line, "before", 6) == 0) {
            state(pid, &cpu_before, &data_before);
            count = 0;
            at = now();
        } else if (strncmp(line, "after", 5) == 0) {
            state(pid, &cpu_after, &data_after);
        } else if (count < MOST) {
            gaps[count++] = at - last;
        }
        last = at;
        if (write(ends[0], "\n", 1) != 1) {
            break;
        }
    }
    waitpid(pid, &status, 0);
    if (count > 0) {
        qsort(gaps, (size_t)count, sizeof gaps[0], order);
        printf("%ld marks, CPU %.1f us a mark, %.1f us on the clock (median), 99 of 100 below %.1f; VmData %+ld KiB\n",
               count, (cpu_after - cpu_before) / (double)count, gaps[count / 2], gaps[count * 99 / 100],
               data_after - data_before);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
