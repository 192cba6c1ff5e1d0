package cli

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReadme executes the console blocks of README.md: fenced blocks marked `console`, in
// which a line after "$ " is a command and the lines below it are its output ("…" matches
// anything).
//
// The commands of a block run in order, by sh, with cleat in the PATH, in a directory of
// their own, with a free port instead of 5210, and must succeed. One that ends in & is
// started, waited for until it listens, and killed after the block. Commands that take
// minutes, need the network or the results of such a command, or change the machine are
// checked without running them:
//
//   - `make TARGET` by `make --dry-run`: the target exists and its commands can be expanded;
//   - experiments, commands that need a path between two namespaces, results or a container: by parsing the command line, presets and networks included;
//   - `git clone` not at all.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := consoleBlocks(strings.ReplaceAll(string(text), ":5210", freePort(t)))
	if len(blocks) == 0 {
		t.Fatal("README.md has no console blocks")
	}
	for _, commands := range blocks {
		t.Run(commands[0].line, func(t *testing.T) {
			dir := t.TempDir()
			for _, c := range commands {
				switch {
				case strings.HasPrefix(c.line, "git clone "):
				case strings.HasPrefix(c.line, "make"):
					dryMake(t, c.line)
				case c.takesLong():
					dryCleat(t, c.line)
				case strings.HasSuffix(c.line, "&"):
					c.start(t, dir)
				default:
					c.run(t, dir)
				}
			}
		})
	}
}

// freePort returns a colon and a TCP port that is free on the host's loopback.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprintf(":%d", l.Addr().(*net.TCPAddr).Port)
}

// consoleCommand is a command in the README with the output that it shows.
type consoleCommand struct {
	line   string
	output []string
}

func consoleBlocks(markdown string) [][]consoleCommand {
	var blocks [][]consoleCommand
	for _, text := range regexp.MustCompile("(?ms)^```console\n(.*?)^```").FindAllStringSubmatch(markdown, -1) {
		var block []consoleCommand
		for line := range strings.Lines(text[1]) {
			line = strings.TrimRight(line, "\n")
			switch command, ok := strings.CutPrefix(line, "$ "); {
			case ok:
				command, _, _ = strings.Cut(command, "  #")
				block = append(block, consoleCommand{line: strings.TrimSpace(command)})
			case len(block) > 0 && line != "":
				block[len(block)-1].output = append(block[len(block)-1].output, line)
			}
		}
		if len(block) > 0 {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// takesLong reports whether the command runs an experiment, or needs the results of one
// or a container.
func (c consoleCommand) takesLong() bool {
	return slices.ContainsFunc(cleatCalls(c.line), func(words []string) bool {
		switch words[0] {
		case "recommend", "attach", "detach", "ls", "net":
			return true
		case "bench":
			return len(words) > 1 && words[1] != "list" && !strings.HasPrefix(words[1], "-")
		case "doctor":
			return len(words) > 1 && !strings.HasPrefix(words[1], "-")
		}
		return false
	})
}

// dryMake runs make --dry-run.
func dryMake(t *testing.T, line string) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not installed")
	}
	words := strings.Fields(line)
	cmd := exec.Command(words[0], append([]string{"--dry-run", "--no-print-directory"}, words[1:]...)...)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", line, err, out)
	}
}

// dryCleat parses the command line and loads the files that it names, without running it.
func dryCleat(t *testing.T, line string) {
	for _, words := range cleatCalls(line) {
		if err := dryParse(words); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// shell returns the command for sh, in dir.
func shell(line, dir string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", "exec "+strings.TrimSuffix(strings.ReplaceAll(line, "./cleat", "cleat"), "&"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+binDir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return cmd
}

// start runs a server until the block ends, and waits until it listens.
func (c consoleCommand) start(t *testing.T, dir string) {
	cmd := shell(c.line, dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	address := regexp.MustCompile(`\S+:\d+`).FindString(c.line)
	for deadline := time.Now().Add(time.Minute); address != ""; {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%q ended: %v", c.line, err)
		case <-time.After(time.Until(deadline)):
			t.Fatalf("%q does not listen: %v", c.line, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// run executes the command and compares its output.
func (c consoleCommand) run(t *testing.T, dir string) {
	out, err := shell(c.line, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c.line, err, out)
	}
	c.compare(t, out)
}

// compare compares the output with what is shown.
func (c consoleCommand) compare(t *testing.T, out []byte) {
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
		t.Errorf("%s prints\n%s\nwant\n%s", c.line, out, strings.Join(c.output, "\n"))
	}
}

func TestConsoleBlocks(t *testing.T) {
	got := consoleBlocks("text\n```console\n$ cleat --version  # which one\ncleat …\n\n$ cleat man out\n```\n```sh\n$ not this\n```\n```console\n$ cleat bench quick\n```\n")
	if len(got) != 2 || len(got[0]) != 2 || got[0][0].line != "cleat --version" || len(got[0][0].output) != 1 || got[1][0].line != "cleat bench quick" {
		t.Fatalf("got %+v", got)
	}
	if got[0][1].takesLong() || !got[1][0].takesLong() {
		t.Error("`cleat man` is run, `cleat bench quick` is not")
	}
}

// TestComparedRunsAreAlike checks that the runs which pages compare were made by the same
// command but for --out: only then do they share all cells.
func TestComparedRunsAreAlike(t *testing.T) {
	for _, page := range []string{"../README.md", "../doc/bench.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		made, compared := map[string]string{}, 0
		for _, block := range consoleBlocks(string(text)) {
			for _, c := range block {
				words := strings.Fields(c.line)
				if i := slices.Index(words, "--out"); i >= 0 && i+1 < len(words) {
					made[words[i+1]] = strings.Join(slices.Delete(slices.Clone(words), i, i+2), " ")
				}
				if i := slices.Index(words, "compare"); i >= 0 && i+2 < len(words) {
					compared++
					if base, other := made[words[i+1]], made[words[i+2]]; base == "" || base != other {
						t.Errorf("%s: %s: the runs are of %q and %q", page, c.line, base, other)
					}
				}
			}
		}
		if compared == 0 {
			t.Errorf("%s compares no runs", page)
		}
	}
}
