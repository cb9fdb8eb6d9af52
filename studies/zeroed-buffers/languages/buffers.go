// Takes COUNT buffers of 1 MiB: buffers make|array|repeat|copy COUNT. Marks `before` and `taken`; prints one line
// of JSON: wanted_bytes, and the sum of one byte of each buffer (which keeps them in use until then).
package main

import (
	"bytes"
	"os"
	"strconv"

	"buffers/strandline"
)

const bufferBytes = 1 << 20

var zero = []byte{0}

func take(idiom string) []byte {
	switch idiom {
	case "make":
		return make([]byte, bufferBytes)
	case "array":
		return new([bufferBytes]byte)[:]
	case "repeat":
		return bytes.Repeat(zero, bufferBytes)
	case "copy":
		return append([]byte(nil), zeros[:]...)
	}
	os.Exit(2)
	return nil
}

// The source of `copy`: never written, so that reading it maps the kernel's page of zeros.
var zeros [bufferBytes]byte

func main() {
	if len(os.Args) != 3 {
		os.Exit(2)
	}
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		os.Exit(2)
	}
	buffers := make([][]byte, count)
	strandline.Mark("before")
	for i := range buffers {
		buffers[i] = take(os.Args[1])
	}
	strandline.Mark("taken")
	sum := 0
	for _, buffer := range buffers {
		sum += int(buffer[5000])
	}
	line := `{"wanted_bytes": ` + strconv.Itoa(count*bufferBytes) + `, "sum": ` + strconv.Itoa(sum) + "}\n"
	os.Stdout.WriteString(line)
}
