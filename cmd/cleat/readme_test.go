package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadme executes the console blocks of README.md: fenced blocks marked
// `console`, in which a line after "$ " is a command and the lines below it are
// what it prints ("…" stands for anything).
//
// Most commands run as they stand, by sh, with cleat in the PATH, in an empty
// directory, and must end well. What takes minutes, needs the network or
// changes the machine is checked without running it:
//
//   - `make TARGET` by `make --dry-run`: the target exists and its commands can
//     be worked out;
//   - a run of an experiment, a measurement of two places, and whatever reads
//     the results of one (`cleat-bench-…`) by parsing the command line as cleat
//     does; presets, networks and options have to be known;
//   - getting the sources (`git clone`, `cd`, `apt-get`) not at all.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := consoleCommands(string(text))
	if len(commands) == 0 {
		t.Fatal("README.md has no console blocks")
	}
	for _, c := range commands {
		t.Run(c.line, func(t *testing.T) {
			switch {
			case strings.HasPrefix(c.line, "git clone ") || strings.HasPrefix(c.line, "cd ") || aptGet.MatchString(c.line):
			case strings.HasPrefix(c.line, "make"):
				dryMake(t, c.line)
			case takesLong.MatchString(c.line):
				dryCleat(t, c.line)
			default:
				c.run(t)
			}
		})
	}
}

var (
	aptGet    = regexp.MustCompile(`^(sudo )?apt(-get)? `)
	takesLong = regexp.MustCompile(`cleat bench ([^l-]|l[^i])|cleat recommend|cleat traffic [^-]|cleat doctor [^-]|cleat-bench-`)
)

// consoleCommand is a command in the README and what it shows as its output.
type consoleCommand struct {
	line   string
	output []string
}

func consoleCommands(markdown string) []consoleCommand {
	var all []consoleCommand
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```").FindAllStringSubmatch(markdown, -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimRight(line, "\n")
			switch command, ok := strings.CutPrefix(line, "$ "); {
			case ok:
				command, _, _ = strings.Cut(command, "  #")
				all = append(all, consoleCommand{line: strings.TrimSpace(command)})
			case len(all) > 0 && line != "":
				all[len(all)-1].output = append(all[len(all)-1].output, line)
			}
		}
	}
	return all
}

// dryMake asks make what it would do.
func dryMake(t *testing.T, line string) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not installed")
	}
	words := strings.Fields(line)
	cmd := exec.Command(words[0], append([]string{"--dry-run", "--no-print-directory"}, words[1:]...)...)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// dryCleat parses the command line without running it.
func dryCleat(t *testing.T, line string) {
	calls := cleatCalls(line)
	if len(calls) == 0 {
		t.Fatal("no call of cleat found")
	}
	for _, words := range calls {
		if err := dryParse(words); err != nil {
			t.Error(err)
		}
	}
}

// run executes the command and compares what it prints.
func (c consoleCommand) run(t *testing.T) {
	cmd := exec.Command("sh", "-c", strings.ReplaceAll(c.line, "./cleat", "cleat"))
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH="+binDir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(c.output) == 0 {
		return
	}
	pattern := `(?s)`
	for _, l := range c.output {
		fields := strings.Fields(l)
		for i := range fields {
			fields[i] = strings.ReplaceAll(regexp.QuoteMeta(fields[i]), "…", ".*")
		}
		pattern += strings.Join(fields, `\s+`) + `\s+`
	}
	if !regexp.MustCompile(pattern).Match(append(out, '\n')) {
		t.Errorf("prints\n%s\nwant\n%s", out, strings.Join(c.output, "\n"))
	}
}

func TestConsoleCommands(t *testing.T) {
	got := consoleCommands("text\n```console\n$ cleat --version  # which one\ncleat …\n\n$ cleat man out\n```\n```sh\n$ not this\n```\n")
	if len(got) != 2 || got[0].line != "cleat --version" || len(got[0].output) != 1 || got[1].line != "cleat man out" {
		t.Errorf("got %+v", got)
	}
}
