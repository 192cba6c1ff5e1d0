package getopt

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample has what makes a grammar ambiguous: a name that is a prefix of another, two
// names for one option, and all arities.
var sample = []Option{
	{Name: "mtu", Short: 'm', Arity: Required, ID: "mtu"},
	{Name: "map-gw", ID: "map-gw"},
	{Name: "map-addr", Arity: Required, ID: "map-addr"},
	{Name: "netns", Arity: Required, ID: "netns"},
	{Name: "netns-only", ID: "netns-only"},
	{Name: "sock", Short: 's', Arity: Required, ID: "socket"},
	{Name: "socket-path", Arity: Required, ID: "socket"},
	{Name: "colour", Short: 'c', Arity: Optional, ID: "colour"},
	{Name: "quiet", Short: 'q', ID: "quiet"},
	{Short: '4', ID: "four"},
}

func TestParse(t *testing.T) {
	quiet := Match{ID: "quiet", As: "-q"}
	rows := []struct {
		name    string
		args    string
		inOrder bool
		want    []Match
		rest    []string
		err     string
	}{
		{name: "nothing"},
		{name: "letters in a cluster", args: "-q4q", want: []Match{quiet, {ID: "four", As: "-4"}, quiet}},
		{name: "argument attached to a letter", args: "-qm1500", want: []Match{quiet, {"mtu", "-m", "1500", true}}},
		{name: "argument after a letter", args: "-m 1500 x", want: []Match{{"mtu", "-m", "1500", true}}, rest: []string{"x"}},
		{name: "an argument may look like an option", args: "-m -q", want: []Match{{"mtu", "-m", "-q", true}}},
		{name: "an argument may be the end of options", args: "-m -- -q", want: []Match{{"mtu", "-m", "--", true}, quiet}},
		{name: "the equals sign belongs to a letter's argument", args: "-m=5", want: []Match{{"mtu", "-m", "=5", true}}},
		{name: "optional argument attached to a letter", args: "-cred", want: []Match{{"colour", "-c", "red", true}}},
		{name: "optional argument not taken after a letter", args: "-c red", want: []Match{{ID: "colour", As: "-c"}}, rest: []string{"red"}},
		{name: "long with equals sign", args: "--mtu=1500", want: []Match{{"mtu", "--mtu", "1500", true}}},
		{name: "long with empty argument", args: "--mtu=", want: []Match{{"mtu", "--mtu", "", true}}},
		{name: "long with two equals signs", args: "--mtu=a=b", want: []Match{{"mtu", "--mtu", "a=b", true}}},
		{name: "long with next argument", args: "--mtu --quiet", want: []Match{{"mtu", "--mtu", "--quiet", true}}},
		{name: "optional argument of a long", args: "--colour=red --colour red", want: []Match{{"colour", "--colour", "red", true}, {ID: "colour", As: "--colour"}}, rest: []string{"red"}},
		{name: "beginning of a long", args: "--q --mt=9", want: []Match{{ID: "quiet", As: "--quiet"}, {"mtu", "--mtu", "9", true}}},
		{name: "a complete name is not ambiguous", args: "--netns /x", want: []Match{{"netns", "--netns", "/x", true}}},
		{name: "two names of one option are not ambiguous", args: "--so=p", want: []Match{{"socket", "--sock", "p", true}}},
		{name: "options after other arguments", args: "a -q b --quiet c", want: []Match{quiet, {ID: "quiet", As: "--quiet"}}, rest: []string{"a", "b", "c"}},
		{name: "in order", inOrder: true, args: "-q a -q", want: []Match{quiet}, rest: []string{"a", "-q"}},
		{name: "end of options", args: "a -q -- -q", want: []Match{quiet}, rest: []string{"a", "-q"}},
		{name: "in order, end of options", inOrder: true, args: "-q -- -q", want: []Match{quiet}, rest: []string{"-q"}},
		{name: "a dash alone", args: "- -q", want: []Match{quiet}, rest: []string{"-"}},

		{name: "unknown long", args: "-q --bogus=3", want: []Match{quiet}, err: "unrecognized option '--bogus=3'"},
		{name: "ambiguous", args: "--map", err: "option '--map' is ambiguous; possibilities: '--map-gw' '--map-addr'"},
		{name: "ambiguous with argument", args: "--map=1", err: "option '--map=1' is ambiguous; possibilities: '--map-gw' '--map-addr'"},
		{name: "long that takes none", args: "--qui=3", err: "option '--quiet' doesn't allow an argument"},
		{name: "long that wants one", args: "--mt", err: "option '--mtu' requires an argument"},
		{name: "unknown letter", args: "-qx4", want: []Match{quiet}, err: "invalid option -- 'x'"},
		{name: "letter that wants one", args: "-qm", want: []Match{quiet}, err: "option requires an argument -- 'm'"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			got, rest, err := Grammar{Options: sample, InOrder: r.inOrder}.Parse(strings.Fields(r.args))
			if fmt.Sprint(err) != r.err && (err != nil || r.err != "") {
				t.Fatalf("error %v, want %q", err, r.err)
			}
			if e := new(Error); err != nil && !errors.As(err, &e) {
				t.Errorf("error is a %T", err)
			}
			if d := cmp.Diff(r.want, got); d != "" {
				t.Errorf("options (-want +got):\n%s", d)
			}
			if d := cmp.Diff(r.rest, rest); d != "" {
				t.Errorf("arguments (-want +got):\n%s", d)
			}
		})
	}
}

// TestAgainstTheCLibrary compares Parse with getopt(1), which calls getopt_long, on
// random command lines.
func TestAgainstTheCLibrary(t *testing.T) {
	program, err := exec.LookPath("getopt")
	if err != nil {
		t.Skip("getopt(1) of util-linux is not installed")
	}
	if exec.Command(program, "--test").Run(); exec.Command(program, "-o", "", "-l", "ab,ac", "--", "--a").Run() == nil {
		t.Skip("this getopt(1) knows no long options")
	}
	words := []string{"-q", "-4", "-q4", "-m", "-m5", "-cred", "-c", "-x", "-qs", "--", "-", "a", "b", "--q", "--qu=1", "--mtu", "--mtu=",
		"--m", "--map", "--map-g", "--netns", "--netns=2", "--netns-", "--so", "--soc=1", "--colour", "--col=3", "--bogus", "--bogus=1", "--=", "---"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		args := make([]string, random.IntN(5))
		for i := range args {
			args[i] = words[random.IntN(len(words))]
		}
		inOrder := random.IntN(2) == 0
		want, got := askLibrary(program, sample, inOrder, args), render(Grammar{Options: sample, InOrder: inOrder}, args)
		if got != want {
			t.Errorf("%q (in order: %v):\nC library %s\nhere      %s", args, inOrder, want, got)
		}
	}
}

// askLibrary returns getopt(1)'s output, or its first error message.
func askLibrary(program string, options []Option, inOrder bool, args []string) string {
	arity := map[Arity]string{None: "", Required: ":", Optional: "::"}
	short, long := "", []string{}
	if inOrder {
		short = "+"
	}
	for _, o := range options {
		if o.Short != 0 {
			short += string(o.Short) + arity[o.Arity]
		}
		if o.Name != "" {
			long = append(long, o.Name+arity[o.Arity])
		}
	}
	cmd := exec.Command(program, append([]string{"-u", "-n", "prog", "-o", short, "-l", strings.Join(long, ","), "--"}, args...)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		first, _, _ := strings.Cut(complaint.String(), "\n")
		return strings.TrimPrefix(first, "prog: ")
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

// render returns the result of Parse in getopt(1)'s form.
func render(g Grammar, args []string) string {
	// getopt(1) can't give one option two names.
	g.Options = append([]Option(nil), g.Options...)
	for i := range g.Options {
		g.Options[i].ID = fmt.Sprint(i)
	}
	met, rest, err := g.Parse(args)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, m := range met {
		fmt.Fprintf(&b, "%s %s ", m.As, m.Value)
	}
	fmt.Fprintf(&b, "-- %s", strings.Join(rest, " "))
	return strings.Join(strings.Fields(b.String()), " ")
}

// FuzzParse checks properties of every command line: no argument is lost or invented, and
// the options before an error are those of the command line cut off there.
func FuzzParse(f *testing.F) {
	f.Add("-q4 -m 1500 a --map-gw\x00--\x00-q", true)
	f.Add("--so=1 --c --colour=x -cred", false)
	f.Add("--map --netns", false)
	f.Fuzz(func(t *testing.T, line string, inOrder bool) {
		args := strings.Fields(line)
		g := Grammar{Options: sample, InOrder: inOrder}
		met, rest, err := g.Parse(args)
		if err != nil && rest != nil {
			t.Fatalf("arguments %q with error %v", rest, err)
		}
		var again []string
		for _, m := range met {
			if m.Value != "" && !strings.Contains(line, m.Value) {
				t.Fatalf("value %q is not in %q", m.Value, line)
			}
			again = append(again, spelled(m)...)
		}
		back, none, err := g.Parse(again)
		if err != nil || len(none) > 0 {
			t.Fatalf("%q spelled out as %q: %v, arguments %q", args, again, err, none)
		}
		if d := cmp.Diff(met, back); d != "" {
			t.Fatalf("%q spelled out as %q (-first +second):\n%s", args, again, d)
		}
	})
}

// spelled returns a match as its complete spelling.
func spelled(m Match) []string {
	switch {
	case !m.Given:
		return []string{m.As}
	case strings.HasPrefix(m.As, "--"):
		return []string{m.As + "=" + m.Value}
	case m.ID == "colour":
		return []string{m.As + m.Value}
	}
	return []string{m.As, m.Value}
}
