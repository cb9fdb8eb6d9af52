// Opens a plugin, has it keep memory, and waits.
package main

import (
	"fmt"
	"os"
	"plugin"
)

func main() {
	opened, err := plugin.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	fill, err := opened.Lookup("Fill")
	if err != nil {
		panic(err)
	}
	fill.(func(int))(20000)
	fmt.Println("{}")
	os.Stdin.Read(make([]byte, 1))
}
