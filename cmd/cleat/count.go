package main

import (
	"fmt"
	"strings"
)

// count is a number of things: "1 path", "2 paths".
func count[N int | uint32 | uint64](n N, thing string) string {
	return plural(fmt.Sprint(n), thing)
}

// plural is a number that is text already, and things.
func plural(number, thing string) string {
	switch {
	case number == "1":
	case strings.HasSuffix(thing, "s"):
		thing += "es"
	default:
		thing += "s"
	}
	return number + " " + thing
}
