// Grows by 64 MiB at a mark and gives it back at the next; status 7.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"subject/strandline"
)

func loop(count int) {
	for ; count > 0; count-- {
		strandline.Mark("quiet")
	}
}

func crowd(count int) {
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			loop(count)
			all.Done()
		}()
	}
	for i := 0; i < 100; i++ {
		runtime.GC()
	}
	all.Wait()
	strandline.Mark("after")
	os.Exit(7)
}

func main() {
	task, argument := "", ""
	if len(os.Args) > 2 {
		task, argument = os.Args[1], os.Args[2]
	}
	count, _ := strconv.Atoi(argument)
	switch task {
	case "crowd":
		crowd(count)
	case "loop":
		loop(100)
		strandline.Mark("before")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		loop(count)
		runtime.ReadMemStats(&after)
		strandline.Mark("after")
		fmt.Println("allocated bytes a mark:", (after.TotalAlloc-before.TotalAlloc)/uint64(count))
		os.Exit(7)
	}
	strandline.Mark("start")
	if task == "reuse" {
		file, _ := syscall.Open(argument, syscall.O_RDWR|syscall.O_CREAT, 0600)
		number, _ := strconv.Atoi(os.Getenv("STRANDLINE_MARK_FD"))
		syscall.Dup2(file, number)
	}
	memory, err := syscall.Mmap(-1, 0, 64<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		os.Exit(1)
	}
	for i := range memory {
		memory[i] = 1
	}
	strandline.Mark("grown")
	syscall.Munmap(memory)
	strandline.Mark("freed")
	strandline.Mark("two\nlines\x01")
	strandline.Mark(strings.Repeat("n", 300))
	fmt.Println("done")
	os.Exit(7)
}
