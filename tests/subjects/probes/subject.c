/* Grows by 64 MiB at a mark and gives it back at the next; status 7. */
#define _GNU_SOURCE
#include "../../../probes/c/strandline.h"

#include <stdio.h>
#include <sys/mman.h>

#define MIB (1024UL * 1024UL)

int main(void) {
    char *memory;
    strandline_mark("start");
    memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return 1;
    }
    memset(memory, 1, 64 * MIB);
    errno = 77;
    strandline_mark("grown");
    munmap(memory, 64 * MIB);
    strandline_mark("freed");
    printf("errno %d\n", errno);
    return 7;
}
