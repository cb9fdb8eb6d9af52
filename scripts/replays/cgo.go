// Two hundred threads of C that wrote 1.5 MiB of their stacks each and wait.
package main

/*
#include <pthread.h>
#include <string.h>
#include <unistd.h>
static pthread_barrier_t done;
static __attribute__((noinline)) void write_stack(void) {
	volatile char bytes[3 << 19];
	for (size_t at = 0; at < sizeof bytes; at += 4096) bytes[at] = 1;
}
static void *work(void *none) {
	write_stack();
	pthread_barrier_wait(&done);
	pause();
	return none;
}
static int start(int count) {
	pthread_barrier_init(&done, 0, count + 1);
	for (int one = 0; one < count; one++) {
		pthread_t thread;
		if (pthread_create(&thread, 0, work, 0)) return one;
	}
	pthread_barrier_wait(&done);
	return count;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	count := int(C.start(200))
	fmt.Printf("ready {\"stacks\": %d, \"version\": %q}\n", count*(3<<19), runtime.Version())
	// For each byte that it reads it says what it has.
	byte := make([]byte, 1)
	for {
		if read, _ := os.Stdin.Read(byte); read == 0 {
			return
		}
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		fmt.Printf("after {\"HeapSys\": %d}\n", stats.HeapSys)
	}
}
