package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cleat/bench/experiment"
	"cleat/cli/ctl"
	"cleat/cli/help"
	"cleat/cli/man"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// longFlag matches a long flag.
var longFlag = regexp.MustCompile(`--[a-z][a-z0-9-]*`)

// shown returns the visible flags of cmd.
func shown(cmd *cobra.Command) []*pflag.Flag {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	var flags []*pflag.Flag
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f) })
	return slices.DeleteFunc(flags, func(f *pflag.Flag) bool { return f.Hidden })
}

// available returns the commands that help lists.
func available(root *cobra.Command) []*cobra.Command {
	var cmds []*cobra.Command
	help.EachCommand(root, func(c *cobra.Command) {
		if c == root || c.IsAvailableCommand() {
			cmds = append(cmds, c)
		}
	})
	return cmds
}

// TestHelpManualAndFlagsAgree compares the flags of each command with its --help and its
// manual page, in both directions.
func TestHelpManualAndFlagsAgree(t *testing.T) {
	dir := t.TempDir()
	root := newRootCmd()
	pages, err := man.Write(newRootCmd(), dir)
	if err != nil {
		t.Fatal(err)
	}
	cmds := available(root)
	if pages != len(cmds) {
		t.Errorf("%d manual pages for %d commands", pages, len(cmds))
	}
	known := map[string]bool{}
	for _, c := range cmds {
		for _, f := range shown(c) {
			known["--"+f.Name] = true
		}
	}
	for _, c := range cmds {
		t.Run(c.CommandPath(), func(t *testing.T) {
			var text bytes.Buffer
			help.Print(&text, c)
			man, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
			if err != nil {
				t.Fatal(err)
			}
			for where, text := range map[string]string{"--help": text.String(), "the manual page": plain(man)} {
				for _, f := range shown(c) {
					if !strings.Contains(text, "--"+f.Name) {
						t.Errorf("%s does not mention --%s", where, f.Name)
					}
					if f.Usage == "" || !strings.Contains(squeeze(text), squeeze(usageOf(f))) {
						t.Errorf("%s does not say what --%s does (%q)", where, f.Name, f.Usage)
					}
				}
				for _, name := range longFlag.FindAllString(text, -1) {
					if !known[name] && !foreignFlag(text, name) {
						t.Errorf("%s mentions %s, which no command has", where, name)
					}
				}
			}
		})
	}
}

// usageOf returns the text of a flag without the quotes around the name of its value.
func usageOf(f *pflag.Flag) string {
	_, usage := pflag.UnquoteUsage(f)
	return usage
}

// TestManualFits checks that the lines of manual pages that man does not fill, such as
// examples, fit a terminal of 80 columns.
func TestManualFits(t *testing.T) {
	const indent = 7 // of a section's text (groff_man(7))
	dir := t.TempDir()
	if _, err := man.Write(newRootCmd(), dir); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("manual pages: %q, %v", pages, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile(`(?ms)^\.EX\n(.*?)^\.EE$`).FindAllSubmatch(text, -1) {
			for line := range strings.Lines(plain(block[1])) {
				if line = strings.TrimSuffix(line, "\n"); len([]rune(line)) > help.Columns-indent {
					t.Errorf("%s: wider than %d columns: %s", filepath.Base(page), help.Columns-indent, line)
				}
			}
		}
	}
}

// TestCommandsInTextsAreNoValues checks that backquotes in the text of a flag without a value
// name a command, and not the flag's value.
func TestCommandsInTextsAreNoValues(t *testing.T) {
	cmd, _, err := newRootCmd().Find([]string{"attach"})
	if err != nil {
		t.Fatal(err)
	}
	syntax, usage := help.Describe(cmd.Flag("keep"))
	if !strings.HasSuffix(syntax, "--keep") || !strings.Contains(usage, "`cleat keep`") {
		t.Errorf("attach --keep is described as %q, %q", syntax, usage)
	}
}

// foreignFlag reports whether every line that mentions the flag is about another program,
// such as `docker run --publish`.
func foreignFlag(text, name string) bool {
	for line := range strings.Lines(joined(text)) {
		if strings.Contains(line, name) && !foreignProgram.MatchString(line) {
			return false
		}
	}
	return true
}

// joined joins continued lines, as a shell does.
func joined(text string) string {
	return strings.ReplaceAll(text, "\\\n", "")
}

var foreignProgram = regexp.MustCompile(`\b(docker|podman|iperf3?|pasta|pipework|slirp4netns|apt-get|sysctl|unshare)\b`)

// plain returns a manual page without roff.
func plain(man []byte) string {
	s := regexp.MustCompile(`(?m)^\.[A-Z]+ ?`).ReplaceAllString(string(man), "")
	s = regexp.MustCompile(`\\f[BIR]|\\&`).ReplaceAllString(s, "")
	return strings.NewReplacer(`\-`, "-", `\(aq`, "'", `\(ga`, "`", `\(ti`, "~", `\(ha`, "^", `\e`, `\`).Replace(s)
}

// squeeze removes white space and quotes, in which help and manual differ.
func squeeze(s string) string {
	return strings.NewReplacer("`", "", "'", "").Replace(strings.Join(strings.Fields(s), ""))
}

// TestHelpIsComplete checks that each command has a summary and a description, within 80
// columns.
func TestHelpIsComplete(t *testing.T) {
	for _, c := range available(newRootCmd()) {
		t.Run(c.CommandPath(), func(t *testing.T) {
			if c.Short == "" || strings.HasSuffix(c.Short, ".") || strings.ToLower(c.Short[:1]) != c.Short[:1] {
				t.Errorf("one-line help %q: want a phrase in lower case without a full stop", c.Short)
			}
			if c.Long == "" {
				t.Error("there is no description")
			}
			var text bytes.Buffer
			help.Print(&text, c)
			for _, f := range shown(c) {
				if f.Value.Type() != "bool" && !strings.Contains(f.Usage, "`") {
					t.Errorf("--%s: want the name of its value in backquotes", f.Name)
				}
			}
			for i, line := range strings.Split(text.String(), "\n") {
				if len([]rune(line)) > help.Columns {
					t.Errorf("line %d of the help is wider than %d columns: %s", i+1, help.Columns, line)
				}
			}
		})
	}
}

// TestExamples parses the examples in the help of every command, without running them.
func TestExamples(t *testing.T) {
	for _, c := range available(newRootCmd()) {
		for line := range strings.Lines(joined(c.Example)) {
			for _, words := range cleatCalls(line) {
				if err := dryParse(words); err != nil {
					t.Errorf("%s: example %q: %v", c.CommandPath(), strings.TrimSpace(line), err)
				}
			}
		}
	}
}

// substitution matches a word that a shell would expand.
var substitution = regexp.MustCompile(`"?\$\([^()]*\)"?`)

// cleatCalls returns the calls of cleat in a line of shell: the words after the program's
// name, up to the next operator.
func cleatCalls(line string) [][]string {
	line, _, _ = strings.Cut(line, " #")
	line = substitution.ReplaceAllString(line, "word")
	if strings.HasPrefix(strings.TrimSpace(line), "#") {
		return nil
	}
	var calls [][]string
	for _, part := range regexp.MustCompile(`[|;&<>()]+`).Split(line, -1) {
		words := strings.Fields(part)
		for len(words) > 0 && (strings.Contains(words[0], "=") || words[0] == "sudo" || words[0] == "$") {
			words = words[1:]
		}
		if len(words) > 0 && (words[0] == "cleat" || words[0] == "./cleat") {
			calls = append(calls, words[1:])
		}
	}
	return calls
}

// dryParse parses a command line of cleat without running it: the command, its flags and
// the number of its arguments.
func dryParse(words []string) error {
	for i := range words {
		words[i] = strings.Trim(words[i], `'"`)
	}
	cmd, rest, err := newRootCmd().Find(ctl.Args(words))
	if err != nil {
		return err
	}
	shown(cmd) // adds --help and --version
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if wanted, _ := cmd.Flags().GetBool("help"); wanted {
		return nil
	}
	if version, err := cmd.Flags().GetBool("version"); err == nil && version {
		return nil
	}
	if !cmd.Runnable() {
		return fmt.Errorf("%q is not a command by itself", cmd.CommandPath())
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	return dryExperiment(cmd)
}

// dryExperiment checks the preset and the networks of a call of `cleat bench`. Files are
// not checked.
func dryExperiment(cmd *cobra.Command) error {
	if cmd.CommandPath() != "cleat bench" || strings.HasSuffix(cmd.Flags().Arg(0), ".yaml") {
		return nil
	}
	e, err := experiment.Load(cmd.Flags().Arg(0))
	if err != nil {
		return err
	}
	networks, err := cmd.Flags().GetStringSlice("networks")
	if err != nil {
		return err
	}
	return e.Override(experiment.Override{Networks: networks}).Validate()
}

func TestDryParse(t *testing.T) {
	for _, tt := range []struct {
		line string
		ok   bool
	}{
		{"cleat --version", true},
		{"source <(cleat completion bash)", true},
		{"$ sudo ./cleat man out | less", true},
		{"cleat man", false},
		{"cleat man out --frob", false},
		{"cleat frob", false},
		{"cleat bench quick --networks veth,bridge", true},
		{"cleat bench quick --networks vteh", false},
		{"cleat bench quikc", false},
		{"cleat bench mine.yaml", true},
	} {
		calls := cleatCalls(tt.line)
		if len(calls) != 1 {
			t.Errorf("%q has %d calls of cleat", tt.line, len(calls))
			continue
		}
		if err := dryParse(calls[0]); (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.line, err)
		}
	}
}
