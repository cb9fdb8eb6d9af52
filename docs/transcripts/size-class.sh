needs cc
[ -e /usr/lib/x86_64-linux-gnu/libjemalloc.so.2 ] || lacks no libjemalloc.so.2
cat > frag.c <<'END'
/* 400,000 blocks of 400 bytes; all but each 60th are freed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *blocks[400000];

int main(void) {
    for (int i = 0; i < 400000; i++) blocks[i] = memset(malloc(400), 1, 400);
    for (int i = 0; i < 400000; i++)
        if (i % 60) free(blocks[i]);
    puts("ready");
    fflush(stdout);
    sleep(600);
}
END
cc -O1 -o frag frag.c
run 'LD_PRELOAD=libjemalloc.so.2 ./frag &'
subject=$!
await printed '^ready'
await asleep
run 'strandline explain $(pidof frag)'
run 'strandline explain -v $(pidof frag)'
