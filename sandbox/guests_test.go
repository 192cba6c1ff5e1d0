package sandbox_test

import (
	"fmt"
	"os"
	"strings"
)

// guests are what the test binary does inside a sandbox.
var guests = map[string]func(args []string) error{
	"show": show,
}

// show prints files.
func show(paths []string) error {
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", p, strings.Join(strings.Fields(string(b)), " "))
	}
	return nil
}
