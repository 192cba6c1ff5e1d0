package main

import (
	"os"
	"strings"
	"testing"
)

// TestRunPage holds doc/run.md against the flags of `cleat run`, and parses the
// commands that it shows.
func TestRunPage(t *testing.T) {
	text, err := os.ReadFile("../../doc/run.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	known := map[string]bool{}
	for _, c := range available(newRootCmd()) {
		for _, f := range shown(c) {
			known["--"+f.Name] = true
			if c.CommandPath() == "cleat "+runName && f.Name != "help" && !strings.Contains(page, "--"+f.Name) {
				t.Errorf("doc/run.md does not mention --%s", f.Name)
			}
		}
	}
	for _, name := range longFlag.FindAllString(page, -1) {
		if !known[name] && !foreignFlag(page, name) {
			t.Errorf("doc/run.md mentions %s, which no command has", name)
		}
	}
	for _, block := range consoleBlocks(page) {
		for _, command := range block {
			for _, words := range cleatCalls(command.line) {
				if err := dryParse(words); err != nil {
					t.Errorf("doc/run.md: %q: %v", command.line, err)
				}
			}
		}
	}
}
