package cli

import (
	"os"
	"strings"
	"testing"

	"cleat/cli/run"
)

// TestPages compares pages of doc with the flags of the commands that they describe, and
// parses the commands that they show.
func TestPages(t *testing.T) {
	for page, about := range map[string]string{"run.md": "cleat " + run.Name, "mptcp.md": "cleat mptcp"} {
		t.Run(page, func(t *testing.T) { checkPage(t, page, about) })
	}
}

func checkPage(t *testing.T, name, about string) {
	text, err := os.ReadFile("../doc/" + name)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	known := map[string]bool{}
	for _, c := range available(newRootCmd()) {
		mine := c.CommandPath() == about || strings.HasPrefix(c.CommandPath(), about+" ")
		for _, f := range shown(c) {
			known["--"+f.Name] = true
			if mine && f.Name != "help" && !strings.Contains(page, "--"+f.Name) {
				t.Errorf("doc/%s does not mention --%s", name, f.Name)
			}
		}
	}
	for _, flag := range longFlag.FindAllString(page, -1) {
		if !known[flag] && !foreignFlag(page, flag) {
			t.Errorf("doc/%s mentions %s, which no command has", name, flag)
		}
	}
	for _, block := range consoleBlocks(page) {
		for _, command := range block {
			for _, words := range cleatCalls(command.line) {
				if err := dryParse(words); err != nil {
					t.Errorf("doc/%s: %q: %v", name, command.line, err)
				}
			}
		}
	}
}
