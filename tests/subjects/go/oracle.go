// Oracle fills maps and slices, drops a part of them, and prints runtime.MemStats. It obeys bytes
// on standard input: 's' prints MemStats again, 'f' calls debug.FreeOSMemory first, 'g' answers,
// makes garbage, collects it and stops the process by SIGSTOP, so that the runtime releases nothing
// meanwhile. It allocates its output beforehand, so that printing changes little.
//
//	oracle COUNT EVERY SEED
package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"
)

var keep = map[int]*[]byte{}
var large [][]byte
var stats runtime.MemStats
var text [4096]byte

func number(argument int) int {
	n, err := strconv.Atoi(os.Args[argument])
	if err != nil {
		os.Exit(2)
	}
	return n
}

//go:noinline
func deep(levels int, done chan bool) int {
	var room [512]byte
	room[levels%512] = byte(levels)
	if levels == 0 {
		done <- true
		time.Sleep(time.Hour)
	} else {
		deep(levels-1, done)
	}
	return int(room[0])
}

func printFigures() {
	runtime.ReadMemStats(&stats)
	line := append(text[:0], `{"HeapAlloc":`...)
	line = strconv.AppendUint(line, stats.HeapAlloc, 10)
	line = strconv.AppendUint(append(line, `,"HeapSys":`...), stats.HeapSys, 10)
	line = strconv.AppendUint(append(line, `,"HeapIdle":`...), stats.HeapIdle, 10)
	line = strconv.AppendUint(append(line, `,"HeapInuse":`...), stats.HeapInuse, 10)
	line = strconv.AppendUint(append(line, `,"HeapReleased":`...), stats.HeapReleased, 10)
	line = strconv.AppendUint(append(line, `,"StackInuse":`...), stats.StackInuse, 10)
	line = strconv.AppendUint(append(line, `,"NextGC":`...), stats.NextGC, 10)
	line = append(line, "}\n"...)
	os.Stdout.Write(line)
}

func main() {
	count, every, seed := number(1), number(2), uint32(number(3))
	for i := 0; i < count; i++ {
		seed = seed*1664525 + 1013904223
		some := make([]byte, 1+seed>>20)
		keep[i] = &some
		if i%5000 == 0 {
			large = append(large, make([]byte, 1+seed>>10))
		}
	}
	for i := 0; i < count; i++ {
		if i%every != 0 {
			delete(keep, i)
		}
	}
	done := make(chan bool)
	for i := 0; i < 20; i++ {
		go deep(10*i, done)
		<-done
	}
	runtime.GC()
	runtime.GC()
	debug.FreeOSMemory()
	printFigures()
	var line [64]byte
	for {
		n, err := os.Stdin.Read(line[:])
		if n == 0 || err != nil {
			return
		}
		switch line[0] {
		case 'f':
			debug.FreeOSMemory()
			printFigures()
		case 's':
			printFigures()
		case 'g':
			os.Stdout.WriteString("{}\n")
			// A hundred megabytes of collected garbage: idle spans that the runtime does not release at
			// once.
			large = large[:0]
			for i := 0; i < 100; i++ {
				some := make([]byte, 1<<20)
				for at := 0; at < 1<<20; at += 4096 {
					some[at] = 1
				}
				large = append(large, some)
			}
			large = nil
			runtime.GC()
			syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
		case 'q':
			return
		}
	}
}
