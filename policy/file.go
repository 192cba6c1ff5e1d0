package policy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
)

// Default is the verdict on a flow that no rule matches.
type Default string

// The defaults, as in a policy file.
const (
	// Auto denies if any rule allows something, and allows otherwise: whoever lists what
	// is allowed means that the rest is not.
	Auto     Default = ""
	AllowAll Default = "allow"
	DenyAll  Default = "deny"
)

// Rules are a policy as a person writes it. The zero Rules allow everything except the
// built-in denials. The order of the rules has no meaning.
type Rules struct {
	Default     Default
	HostSockets HostSockets
	// NAT64 holds prefixes under which translators of the network reach IPv4 addresses
	// (RFC 6052), in addition to those that the network's resolver announces (RFC 7050).
	// At most 64.
	NAT64 []netip.Prefix
	Rules []Rule
}

// Denies reports whether a flow that no rule matches is denied.
func (r Rules) Denies() bool {
	if r.Default != Auto {
		return r.Default == DenyAll
	}
	for _, rule := range r.Rules {
		if rule.Allow {
			return true
		}
	}
	return false
}

// FileError is an invalid line of a policy file.
type FileError struct {
	File string
	Line int // counted from 1
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

// Unwrap returns what is wrong with the line.
func (e *FileError) Unwrap() error { return e.Err }

const wantLine = `"allow RULE", "deny RULE", "default allow|deny", "host-sockets none|tcp|tcp,udp" or "nat64 PREFIX"`

// maxFileErrors is the number of errors after which Parse stops reading. More do not help
// a user, and the sender of a policy over the control socket controls their number.
const maxFileErrors = 20

// Parse reads a policy file: one "allow RULE", "deny RULE", "default allow|deny",
// "host-sockets none|tcp|tcp,udp" or "nat64 PREFIX" a line; # starts a comment. Errors
// begin with name. They are one *FileError for each invalid line, joined, or a read
// error.
func Parse(name string, r io.Reader) (Rules, error) {
	var (
		rules  Rules
		bad    []error
		line   int
		onceAt = map[string]int{} // line numbers of directives that may appear only once
	)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line++
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(strings.TrimPrefix(text, "\ufeff"))
		if len(words) == 0 {
			continue
		}
		err := rules.add(words)
		if once := words[0] == "default" || words[0] == "host-sockets"; once && err == nil {
			if at := onceAt[words[0]]; at > 0 {
				err = fmt.Errorf("read %s: it is set in line %d already", words[0], at)
			}
			onceAt[words[0]] = line
		}
		if err != nil {
			bad = append(bad, &FileError{name, line, err})
		}
		if len(bad) == maxFileErrors {
			bad = append(bad, fmt.Errorf("read policy %s: too many errors; the rest was not read", name))
			break
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		bad = append(bad, &FileError{name, line + 1, errors.New("read line: longer than 64 KiB")})
	} else if err != nil {
		return Rules{}, fmt.Errorf("read policy %s: %w", name, err)
	}
	if len(bad) > 0 {
		return Rules{}, errors.Join(bad...)
	}
	return rules, nil
}

// add parses one line of a policy file.
func (r *Rules) add(words []string) error {
	verb := words[0]
	switch {
	case !slices.Contains([]string{"allow", "deny", "default", "host-sockets", "nat64"}, verb):
		return fmt.Errorf("read line: %q: want %s", verb, wantLine)
	case len(words) == 1:
		return fmt.Errorf("read line: %q without a value: want %s", verb, wantLine)
	case len(words) > 2:
		return fmt.Errorf("read line: %q: want one rule a line, without spaces; comments begin with #", words[2])
	}
	switch verb {
	case "default":
		d := Default(words[1])
		if d != AllowAll && d != DenyAll {
			return fmt.Errorf(`read default: %q: want "allow" or "deny"`, d)
		}
		r.Default = d
		return nil
	case "host-sockets":
		var err error
		r.HostSockets, err = ParseHostSockets(words[1])
		return err
	case "nat64":
		p, err := ParseNAT64(words[1])
		if err != nil || slices.Contains(r.NAT64, p) {
			return err
		}
		if len(r.NAT64) == maxNAT64Stated {
			return fmt.Errorf("read nat64: want at most %d prefixes", maxNAT64Stated)
		}
		r.NAT64 = append(r.NAT64, p)
		return nil
	}
	rule, err := ParseRule(verb == "allow", words[1])
	if err == nil {
		r.Rules = append(r.Rules, rule)
	}
	return err
}

// MarshalText returns the policy as a file. It fails only if Rules holds a rule that
// could not have been parsed.
func (r Rules) MarshalText() ([]byte, error) {
	var b bytes.Buffer
	if r.Default != Auto {
		fmt.Fprintf(&b, "default %s\n", r.Default)
	}
	if r.HostSockets != HostSocketsAsked {
		fmt.Fprintf(&b, "host-sockets %s\n", r.HostSockets)
	}
	for _, p := range r.NAT64 {
		fmt.Fprintf(&b, "nat64 %s\n", p)
	}
	for _, rule := range r.Rules {
		if _, err := rule.checked(); err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s %s\n", rule.verb(), rule)
	}
	return b.Bytes(), nil
}
