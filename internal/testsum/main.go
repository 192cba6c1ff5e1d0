// Command testsum runs tests and says what matters: each package in one line
// as it ends, the output of what failed, why tests were skipped, and as its
// last line
//
//	N passed, N failed, N skipped
//
// Its arguments are a command that prints events as `go test -json` does, the
// last of them the packages:
//
//	testsum go test -json -count=1 ./...
//
// It counts tests without subtests of their own; a package that does not build
// or ends outside a test counts as one failure. Up to three tests that have
// failed are tried once more, each by itself. One that passes then counts as
// passed, and is named as unsteady below the output of its failure. It exits
// with 1 when anything failed and when no test ran at all.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: testsum COMMAND... PACKAGES, e.g. testsum go test -json ./...")
		os.Exit(2)
	}
	ok, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: error: %v\n", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// run tells whether the tests that a command runs have passed.
func run(command []string, w io.Writer) (bool, error) {
	s := newSummary(w)
	last := len(command) - 1
	s.again = func(f failure) bool { return passesAgain(command[:last:last], f) }
	c := exec.Command(command[0], command[1:]...)
	c.Stderr = os.Stderr
	events, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return false, fmt.Errorf("run the tests: %w", err)
	}
	if err := read(events, s); err != nil {
		return false, fmt.Errorf("read test events: %w", err)
	}
	failed := c.Wait()
	told := s.count()
	ok := s.finish()
	if failed != nil && told == 0 {
		return false, fmt.Errorf("%s: %w, and no test has failed", strings.Join(command, " "), failed)
	}
	return ok, nil
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

// passesAgain runs a test alone and tells whether it has passed. The command
// lacks the packages.
func passesAgain(command []string, f failure) bool {
	command = append(command, "-run", only(f.test), f.pkg)
	c := exec.Command(command[0], command[1:]...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	return err == nil && passed(out, f)
}

// passed tells whether the test is among those that have, and was not skipped.
func passed(events []byte, f failure) bool {
	for line := range bytes.Lines(events) {
		var e event
		if json.Unmarshal(line, &e) == nil && e.Action == "pass" && e.Package == f.pkg && e.Test == f.test {
			return true
		}
	}
	return false
}

// only is the pattern of go test -run that matches the test with that name.
func only(test string) string {
	names := strings.Split(test, "/")
	for i, n := range names {
		names[i] = "^" + regexp.QuoteMeta(n) + "$"
	}
	return strings.Join(names, "/")
}
