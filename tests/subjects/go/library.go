// Library is a Go runtime in a program of another language. Fill allocates its argument's number of
// blocks of 1,000 bytes and keeps them.
package main

import "C"

var keep [][]byte

//export Fill
func Fill(blocks C.int) {
	for i := 0; i < int(blocks); i++ {
		some := make([]byte, 1000)
		for at := range some {
			some[at] = 1
		}
		keep = append(keep, some)
	}
}

func main() {}
