// Threads allocate and check their objects, or compute without a call, while one collects without
// end: the runtime interrupts the others by SIGURG. Each byte of its input prints the number of
// collections and of wrong bytes; q ends it.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
)

var collections, wrong, sink atomic.Uint64

func work() {
	for turn := byte(1); ; turn++ {
		block := make([]byte, 1000+int(turn))
		for i := range block {
			block[i] = turn
		}
		sink.Add(uint64(len(make([]byte, 100))))
		if block[0] != turn || block[len(block)-1] != turn {
			wrong.Add(1)
		}
	}
}

func compute() {
	for sum := uint64(0); ; {
		for i := uint64(0); i < 1<<28; i++ {
			sum = sum*31 + i
		}
		sink.Add(sum)
	}
}

func collect() {
	for {
		runtime.GC()
		collections.Add(1)
	}
}

func main() {
	go work()
	go work()
	go compute()
	go collect()
	for collections.Load() < 10 {
		runtime.Gosched()
	}
	fmt.Println("ready")
	command := make([]byte, 1)
	for {
		if n, err := os.Stdin.Read(command); n != 1 || err != nil || command[0] == 'q' {
			os.Exit(0)
		}
		fmt.Printf("{\"collections\":%d,\"wrong\":%d}\n", collections.Load(), wrong.Load())
	}
}
