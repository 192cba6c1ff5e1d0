// Command testsum reads what `go test -json` writes and says what matters:
// each package in one line as it ends, the output of what failed, why tests
// were skipped, and as its last line
//
//	N passed, N failed, N skipped
//
// It counts tests without subtests of their own; a package that does not build
// or ends outside a test counts as one failure. It exits with 1 when anything
// failed and when no test ran at all.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	s := newSummary(os.Stdout)
	if err := read(os.Stdin, s); err != nil {
		fmt.Fprintf(os.Stderr, "testsum: error: read test events: %v\n", err)
		os.Exit(1)
	}
	if !s.finish() {
		os.Exit(1)
	}
}

// event is one line of `go test -json` (go doc test2json; go help buildjson).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events
	Test        string // "" for the package as a whole
	Elapsed     float64
	Output      string
	FailedBuild string
}

// read passes every event on r to s. Lines that are no events, such as
// complaints of the go command itself, are shown as they are.
func read(r io.Reader, s *summary) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				s.stray(string(line))
			} else {
				s.add(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
