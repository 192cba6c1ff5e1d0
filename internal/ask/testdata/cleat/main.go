// Command cleat says so if it has to do alone what it was asked for.
package main

import (
	"fmt"

	_ "cleat/internal/ask"
)

func main() { fmt.Println("alone") }
