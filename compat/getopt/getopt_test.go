package getopt

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample has what makes a command line ambiguous: a name that is a prefix of another, and
// options with and without an argument.
var sample = Table[struct{}]{Rows: []Row[struct{}]{
	{Name: "mtu", Short: 'm', Arg: "MTU"},
	{Name: "map-gw"},
	{Name: "map-addr", Arg: "ADDR"},
	{Name: "netns", Arg: "PATH"},
	{Name: "netns-only"},
	{Name: "sock", Short: 's', Arg: "PATH"},
	{Name: "socket-path", Arg: "PATH"},
	{Name: "quiet", Short: 'q'},
	{Name: "four", Short: '4'},
}}

// match is an option found on the command line, and its argument.
type match struct{ As, Value string }

// parse returns the options in args, and the other arguments.
func parse(args []string, inOrder bool) (met []match, rest []string, err error) {
	table := sample
	table.InOrder = inOrder
	rest, err = table.parse(args, func(_ Row[struct{}], as, value string) error {
		met = append(met, match{as, value})
		return nil
	})
	return met, rest, err
}

func TestParse(t *testing.T) {
	quiet := match{As: "-q"}
	rows := []struct {
		name    string
		args    string
		inOrder bool
		want    []match
		rest    []string
		err     string
	}{
		{name: "nothing"},
		{name: "letters in a cluster", args: "-q4q", want: []match{quiet, {As: "-4"}, quiet}},
		{name: "argument attached to a letter", args: "-qm1500", want: []match{quiet, {"-m", "1500"}}},
		{name: "argument after a letter", args: "-m 1500 x", want: []match{{"-m", "1500"}}, rest: []string{"x"}},
		{name: "an argument may look like an option", args: "-m -q", want: []match{{"-m", "-q"}}},
		{name: "an argument may be the end of options", args: "-m -- -q", want: []match{{"-m", "--"}, quiet}},
		{name: "the equals sign belongs to a letter's argument", args: "-m=5", want: []match{{"-m", "=5"}}},
		{name: "long with equals sign", args: "--mtu=1500", want: []match{{"--mtu", "1500"}}},
		{name: "long with empty argument", args: "--mtu=", want: []match{{"--mtu", ""}}},
		{name: "long with two equals signs", args: "--mtu=a=b", want: []match{{"--mtu", "a=b"}}},
		{name: "long with next argument", args: "--mtu --quiet", want: []match{{"--mtu", "--quiet"}}},
		{name: "beginning of a long", args: "--q --mt=9", want: []match{{As: "--quiet"}, {"--mtu", "9"}}},
		{name: "a complete name is not ambiguous", args: "--netns /x", want: []match{{"--netns", "/x"}}},
		{name: "options after other arguments", args: "a -q b --quiet c", want: []match{quiet, {As: "--quiet"}}, rest: []string{"a", "b", "c"}},
		{name: "in order", inOrder: true, args: "-q a -q", want: []match{quiet}, rest: []string{"a", "-q"}},
		{name: "end of options", args: "a -q -- -q", want: []match{quiet}, rest: []string{"a", "-q"}},
		{name: "in order, end of options", inOrder: true, args: "-q -- -q", want: []match{quiet}, rest: []string{"-q"}},
		{name: "a dash alone", args: "- -q", want: []match{quiet}, rest: []string{"-"}},

		{name: "unknown long", args: "-q --bogus=3", want: []match{quiet}, err: "unrecognized option '--bogus=3'"},
		{name: "ambiguous", args: "--map", err: "option '--map' is ambiguous; possibilities: '--map-gw' '--map-addr'"},
		{name: "ambiguous with argument", args: "--map=1", err: "option '--map=1' is ambiguous; possibilities: '--map-gw' '--map-addr'"},
		{name: "long that takes none", args: "--qui=3", err: "option '--quiet' doesn't allow an argument"},
		{name: "long that wants one", args: "--mt", err: "option '--mtu' requires an argument"},
		{name: "unknown letter", args: "-qx4", want: []match{quiet}, err: "invalid option -- 'x'"},
		{name: "letter that wants one", args: "-qm", want: []match{quiet}, err: "option requires an argument -- 'm'"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			got, rest, err := parse(strings.Fields(r.args), r.inOrder)
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

// TestAgainstTheCLibrary compares parse with getopt(1), which calls getopt_long, on
// random command lines.
func TestAgainstTheCLibrary(t *testing.T) {
	program, err := exec.LookPath("getopt")
	if err != nil {
		t.Skip("getopt(1) of util-linux is not installed")
	}
	if exec.Command(program, "--test").Run(); exec.Command(program, "-o", "", "-l", "ab,ac", "--", "--a").Run() == nil {
		t.Skip("this getopt(1) knows no long options")
	}
	words := []string{"-q", "-4", "-q4", "-m", "-m5", "-x", "-qs", "--", "-", "a", "b", "--q", "--qu=1", "--mtu", "--mtu=",
		"--m", "--map", "--map-g", "--netns", "--netns=2", "--netns-", "--so", "--soc=1", "--bogus", "--bogus=1", "--=", "---"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		args := make([]string, random.IntN(5))
		for i := range args {
			args[i] = words[random.IntN(len(words))]
		}
		inOrder := random.IntN(2) == 0
		want, got := askLibrary(program, inOrder, args), render(args, inOrder)
		if got != want {
			t.Errorf("%q (in order: %v):\nC library %s\nhere      %s", args, inOrder, want, got)
		}
	}
}

// askLibrary returns getopt(1)'s output, or its first error message.
func askLibrary(program string, inOrder bool, args []string) string {
	short, long := "", []string{}
	if inOrder {
		short = "+"
	}
	for _, r := range sample.Rows {
		colon := ""
		if r.Arg != "" {
			colon = ":"
		}
		if r.Short != 0 {
			short += string(r.Short) + colon
		}
		long = append(long, r.Name+colon)
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

// render returns the result of parse in getopt(1)'s form.
func render(args []string, inOrder bool) string {
	met, rest, err := parse(args, inOrder)
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
	f.Add("--so=1 --q --mtu= -m5", false)
	f.Add("--map --netns", false)
	f.Fuzz(func(t *testing.T, line string, inOrder bool) {
		args := strings.Fields(line)
		met, rest, err := parse(args, inOrder)
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
		back, none, err := parse(again, inOrder)
		if err != nil || len(none) > 0 {
			t.Fatalf("%q spelled out as %q: %v, arguments %q", args, again, err, none)
		}
		if d := cmp.Diff(met, back); d != "" {
			t.Fatalf("%q spelled out as %q (-first +second):\n%s", args, again, d)
		}
	})
}

// spelled returns a match as its complete spelling.
func spelled(m match) []string {
	takesArg := slices.ContainsFunc(sample.Rows, func(r Row[struct{}]) bool {
		return r.Arg != "" && (m.As == "--"+r.Name || m.As == "-"+string(r.Short))
	})
	switch {
	case !takesArg:
		return []string{m.As}
	case strings.HasPrefix(m.As, "--"):
		return []string{m.As + "=" + m.Value}
	}
	return []string{m.As, m.Value}
}
