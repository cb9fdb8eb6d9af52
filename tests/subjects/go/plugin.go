// A plugin that keeps memory for whoever opened it.
package main

var keep [][]byte

// Fill keeps so many blocks, written to.
func Fill(blocks int) {
	for range make([]struct{}, blocks) {
		block := make([]byte, 1024)
		block[0] = 1
		keep = append(keep, block)
	}
}
