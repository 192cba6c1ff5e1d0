package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

const aFile = "\ufeff# what the build needs\r\n" +
	"default deny\n\n" +
	"host-sockets tcp\n" +
	"allow example.com:443/tcp  # the registry\n" +
	"\tallow 192.0.2.0/24\n" +
	"deny 192.0.2.7\n" +
	"allow [2001:db8::/32]:80,443"

func TestParseFile(t *testing.T) {
	r, err := Parse("net.policy", strings.NewReader(aFile))
	if err != nil {
		t.Fatal(err)
	}
	text, err := r.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	want := "default deny\nhost-sockets tcp\nallow example.com:443/tcp\nallow 192.0.2.0/24\ndeny 192.0.2.7\nallow [2001:db8::/32]:80,443\n"
	if string(text) != want {
		t.Errorf("written as\n%swant\n%s", text, want)
	}
}

func TestParseErrorsNameTheLine(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"unknown verb", "permit all", []string{`f:1: read line: "permit": want "allow RULE"`}},
		{"verb alone", "\nallow", []string{`f:2: read line: "allow" without a value`}},
		{"several rules a line", "allow all 192.0.2.1", []string{`f:1: read line: "192.0.2.1": want one rule a line`}},
		{"a bad rule", "allow all\n# x\ndeny 192.0.2.1/24", []string{`f:3: read rule "192.0.2.1/24"`, "192.0.2.0/24"}},
		{"a bad default", "default drop", []string{`f:1: read default: "drop": want "allow" or "deny"`}},
		{"a bad word about sockets", "host-sockets udp", []string{`f:1: read host-sockets: "udp": want "none", "tcp" or "tcp,udp"`}},
		{"two about sockets", "host-sockets tcp\nhost-sockets tcp", []string{"f:2: read host-sockets: it is set in line 1 already"}},
		{"two defaults", "default deny\ndefault allow", []string{"f:2: read default: it is set in line 1 already"}},
		{"each of several", "x\nallow all\ny", []string{"f:1:", "f:3:"}},
		{"a line without end", "allow all\nallow " + strings.Repeat("a", 1<<17), []string{"f:2: read line: longer than 64 KiB"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f", strings.NewReader(c.in))
			var at *FileError
			if !errors.As(err, &at) {
				t.Fatalf("error is %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}

func TestParseReadError(t *testing.T) {
	_, err := Parse("f", io.MultiReader(strings.NewReader("allow all\n"), iotest.ErrReader(io.ErrClosedPipe)))
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error is %v", err)
	}
}

func TestMarshalInvalidRules(t *testing.T) {
	if text, err := (Rules{Rules: []Rule{{}}}).MarshalText(); err == nil {
		t.Errorf("the zero rule is written as %q", text)
	}
}

// UDP sockets of the host's go with policies that deny nothing.
func TestHostSocketsAndRules(t *testing.T) {
	for text, want := range map[string]bool{
		"host-sockets tcp,udp":                             true,
		"host-sockets tcp,udp\ndefault allow\nallow all":   true,
		"host-sockets tcp,udp\nallow 192.0.2.1":            false,
		"host-sockets tcp,udp\ndefault deny":               false,
		"host-sockets tcp,udp\ndefault allow\ndeny all:25": false,
		"host-sockets tcp\ndeny 192.0.2.1":                 true,
		"host-sockets none\nallow 192.0.2.1":               true,
	} {
		rules, err := Parse("f", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(Config{Rules: rules})
		if (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil && (p.HostSockets() != rules.HostSockets || p.Rules().HostSockets != rules.HostSockets) {
			t.Errorf("%q: the policy says %q", text, p.HostSockets())
		}
	}
	if _, err := New(Config{Rules: Rules{HostSockets: "some"}}); err == nil {
		t.Error("a word that there is not is let through")
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add(aFile)
	f.Add("default allow\ndeny all\n")
	f.Add("host-sockets tcp,udp\n")
	f.Add("nat64 2001:db8:64::/96\nnat64 64:ff9b:1::/48\n")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse("f", strings.NewReader(s))
		if err != nil {
			return
		}
		text, err := r.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("again", bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if again.Default != r.Default || again.HostSockets != r.HostSockets || !slices.Equal(again.NAT64, r.NAT64) || !slices.EqualFunc(again.Rules, r.Rules, Rule.equal) {
			t.Fatalf("%q is written as %q, which is read as %v", s, text, again)
		}
	})
}

// However many lines are wrong, the error is short.
func TestManyWrongLines(t *testing.T) {
	for _, line := range []string{"x\n", "nat64 x\n", "allow *\n", "default x\n"} {
		_, err := Parse("f", strings.NewReader(strings.Repeat(line, 100_000)))
		if err == nil || len(err.Error()) > 200*(maxFileErrors+1) || !strings.Contains(err.Error(), "f:1:") {
			t.Errorf("%q: an error of %d bytes", line, len(fmt.Sprint(err)))
		}
	}
	var b strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&b, "nat64 2001:db8:%x:%x::/64\n", i>>16, i&0xffff)
	}
	if _, err := Parse("f", strings.NewReader(b.String())); err == nil || len(err.Error()) > 200*(maxFileErrors+1) {
		t.Errorf("100,000 prefixes: %v", err)
	}
}
