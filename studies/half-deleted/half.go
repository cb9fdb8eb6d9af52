// Fills a map, deletes half of it, and makes the runtime give back what it will: debug.FreeOSMemory.
//
//	half COUNT BYTES WHICH        WHICH: alternate or oldest
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"half/strandline"
)

func number(argument int) int {
	n, err := strconv.Atoi(os.Args[argument])
	if err != nil {
		panic(err)
	}
	return n
}

func main() {
	count, size, which := number(1), number(2), os.Args[3]
	kept := make(map[int][]byte)
	strandline.Mark("start")
	for i := 0; i < count; i++ {
		some := make([]byte, size)
		// What was never written to is not resident.
		for at := range some {
			some[at] = 1
		}
		kept[i] = some
	}
	strandline.Mark("filled")
	for i := 0; i < count; i++ {
		if which == "alternate" && i%2 == 0 || which == "oldest" && i < count/2 {
			delete(kept, i)
		}
	}
	// As in a program that goes on: the next collection comes by itself.
	runtime.GC()
	strandline.Mark("halved")
	debug.FreeOSMemory()
	strandline.Mark("remedied")
	fmt.Printf("{\"left\": %d}\n", len(kept))
}
