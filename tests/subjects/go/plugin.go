// A plugin that keeps memory for the program that opened it.
package main

var keep [][]byte

// Fill writes to as many blocks as its argument says and keeps them.
func Fill(blocks int) {
	for range make([]struct{}, blocks) {
		block := make([]byte, 1024)
		block[0] = 1
		keep = append(keep, block)
	}
}
