package term

import (
	"fmt"
	"strings"
)

// Count is a number of things: "1 path", "2 paths".
func Count[N int | uint32 | uint64](n N, thing string) string {
	return Plural(fmt.Sprint(n), thing)
}

// Plural is a number that is text already, and things.
func Plural(number, thing string) string {
	switch {
	case number == "1":
	case strings.HasSuffix(thing, "s"):
		thing += "es"
	default:
		thing += "s"
	}
	return number + " " + thing
}
