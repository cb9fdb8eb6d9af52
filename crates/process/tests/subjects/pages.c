/* A process of known pages, for the tests of residency. It prints for each kind of mapping a line
 * "NAME START END RESIDENT ANONYMOUS" (hexadecimal addresses, bytes) with what smaps must count; a
 * negative number is unknown. Then it prints "ready" and waits to be killed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { PAGE = 4096, PAGES = 64, HUGE = 2 << 20 };
static volatile char sink;

static char *map(size_t size, int protection, int flags, int file) {
    char *at = mmap(NULL, size, protection, flags, file, 0);
    if (at == MAP_FAILED) { perror("mmap"); exit(1); }
    /* Huge pages would fill what was not touched. */
    madvise(at, size, MADV_NOHUGEPAGE);
    return at;
}

static void print_line(const char *name, char *at, size_t size, long resident, long anonymous) {
    printf("%s %lx %lx %ld %ld\n", name, (long)at, (long)(at + size), resident, anonymous);
}

static void touch(char *at, size_t from, size_t to, int write) {
    for (size_t page = from; page < to; page++) {
        if (write) at[page * PAGE] = 1; else sink = at[page * PAGE];
    }
}

static void files(void) {
    char name[] = "/tmp/strandline-pages-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    if (ftruncate(file, PAGES * PAGE)) exit(1);
    for (int page = 0; page < PAGES; page++) if (pwrite(file, "x", 1, (off_t)page * PAGE) != 1) exit(1);
    char *at = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file);
    madvise(at, PAGES * PAGE, MADV_RANDOM); /* no pages around the fault */
    touch(at, 0, 20, 0);
    touch(at, 10, 30, 1);
    print_line("private_file", at, PAGES * PAGE, -1, 20 * PAGE);

    int memory = memfd_create("pages", 0);
    if (ftruncate(memory, PAGES * PAGE)) exit(1);
    char *shared = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory);
    touch(shared, 0, 7, 1);
    print_line("memfd", shared, PAGES * PAGE, 7 * PAGE, 0);
    char *copied = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory);
    touch(copied, 0, 3, 1);
    print_line("memfd_private", copied, 3 * PAGE, 3 * PAGE, 3 * PAGE);
    char *nameless = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    touch(nameless, 5, 9, 1);
    print_line("shared_anonymous", nameless, PAGES * PAGE, 4 * PAGE, 0);
}

static void anonymous(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *zeros = map(PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1);
    touch(zeros, 0, PAGES, 0);
    print_line("zeros_only", zeros, PAGES * PAGE, 0, 0);
    char *mixed = map(PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1);
    touch(mixed, 0, PAGES, 0);
    for (int page = 0; page < PAGES; page += 2) mixed[page * PAGE] = 1;
    print_line("zeros_mixed", mixed, PAGES * PAGE, PAGES / 2 * PAGE, PAGES / 2 * PAGE);
    char *lazy = map(PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1);
    touch(lazy, 0, PAGES, 1);
    madvise(lazy, PAGES / 2 * PAGE, MADV_FREE);
    print_line("lazy_free", lazy, PAGES * PAGE, -1, -1); /* the kernel may take them at any time */
    char *none = map(PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1);
    touch(none, 0, 4, 1);
    mprotect(none, PAGES * PAGE, PROT_NONE);
    print_line("prot_none", none, PAGES * PAGE, 4 * PAGE, 4 * PAGE);
    char *vast = map((size_t)8 << 40, PROT_NONE, flags | MAP_NORESERVE, -1);
    print_line("reservation", vast, (size_t)8 << 40, 0, 0);
    char *sparse = map((size_t)64 << 30, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, -1);
    sparse[0] = sparse[(size_t)1 << 30] = sparse[((size_t)3 << 30) + PAGE] = 1;
    print_line("sparse", sparse, (size_t)64 << 30, 3 * PAGE, 3 * PAGE);
    char *guarded = map(PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1);
    touch(guarded, 0, PAGES, 1);
    long expected = PAGES * PAGE;
    if (madvise(guarded + 8 * PAGE, 8 * PAGE, MADV_GUARD_INSTALL) == 0) expected -= 8 * PAGE;
    print_line("guarded", guarded, PAGES * PAGE, expected, expected);
}

static char *huge_area(size_t count) {
    char *at = map((count + 1) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    at = (char *)(((size_t)at + HUGE - 1) & ~(size_t)(HUGE - 1));
    madvise(at, count * HUGE, MADV_HUGEPAGE);
    return at;
}

static void huge(void) {
    char *at = huge_area(3);
    memset(at, 1, 3 * HUGE);
    madvise(at + HUGE + 16 * PAGE, 100 * PAGE, MADV_DONTNEED);
    munmap(at + 2 * HUGE + HUGE / 2, HUGE / 2);
    madvise(at, 2 * HUGE + HUGE / 2, MADV_NOHUGEPAGE); /* khugepaged would fill the holes again */
    print_line("huge_partial", at, 3 * HUGE, 3 * HUGE - HUGE / 2 - 100 * PAGE, 3 * HUGE - HUGE / 2 - 100 * PAGE);
    char *zero = huge_area(2);
    for (size_t page = 0; page < 2 * HUGE / PAGE; page++) sink = zero[page * PAGE];
    madvise(zero, 2 * HUGE, MADV_NOHUGEPAGE);
    print_line("huge_zero", zero, 2 * HUGE, 0, 0);
    char *both = huge_area(2);
    sink = both[0];
    both[HUGE] = 1;
    madvise(both, 2 * HUGE, MADV_NOHUGEPAGE);
    print_line("huge_zero_mixed", both, 2 * HUGE, -1, -1);
    char *table = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (table == MAP_FAILED) { printf("# no hugetlb pages on this machine\n"); return; }
    table[0] = 1;
    print_line("hugetlb", table, HUGE, 0, 0);
}

int main(void) {
    files();
    anonymous();
    huge();
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}
