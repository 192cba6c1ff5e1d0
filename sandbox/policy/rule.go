package policy

import (
	"errors"
	"io"
	"net/netip"

	"cleat/packet"
)

// Rule allows or denies some destinations. It is pure data; make one by hand or
// with ParseRule. Exactly one of All, Prefix and Name says which destinations.
type Rule struct {
	Allow  bool         // false: the rule denies
	All    bool         // every address of both families
	Prefix netip.Prefix // masked; never of IPv4-mapped IPv6
	// Name is lower case without a final dot. "*.example.com" stands for all
	// names below example.com, at any depth, and not for example.com itself.
	Name string
	// Ports are the destination ports, sorted and apart from each other. nil:
	// all of them, and protocols without ports too.
	Ports []PortRange
	// Protocol is TCP, UDP or ICMP, which here means ICMPv6 too; 0: each.
	Protocol packet.Protocol
}

// PortRange is First to Last, both included.
type PortRange struct{ First, Last uint16 }

// ParseRule reads what follows --allow or --deny:
//
//	CIDR|name[:ports][/proto]
//
// The error is a *RuleError.
func ParseRule(allow bool, s string) (Rule, error) { return Rule{}, errNotYet }

// String is the rule as ParseRule reads it, without allow or deny.
func (r Rule) String() string { return "" }

// MarshalText is "allow" or "deny" and the rule.
func (r Rule) MarshalText() ([]byte, error) { return nil, errNotYet }

// UnmarshalText reads what MarshalText writes.
func (r *Rule) UnmarshalText(b []byte) error { return errNotYet }

// RuleError is a rule that can't be read.
type RuleError struct {
	Rule string // as given
	Part string // what of it is wrong
	Want string // what would be right
}

func (e *RuleError) Error() string { return "" }

// Default is what becomes of a flow that no rule speaks of.
type Default uint8

// The defaults.
const (
	// Auto denies where any rule allows something, and else allows: to name what
	// is allowed means that the rest is not.
	Auto Default = iota
	AllowAll
	DenyAll
)

// Rules are a policy as a person writes it. The zero Rules let everything
// through but the built-in denials. The order of the rules means nothing.
type Rules struct {
	Default Default
	Rules   []Rule
}

// Parse reads a policy file: one "allow RULE", "deny RULE" or "default
// allow|deny" a line; # begins a comment. name stands in errors, which are
// *FileError and name each line that is wrong, joined.
func Parse(name string, r io.Reader) (Rules, error) { return Rules{}, errNotYet }

// FileError is a line of a policy file that can't be read.
type FileError struct {
	File string
	Line int
	Err  error
}

func (e *FileError) Error() string { return "" }

// Unwrap is what is wrong with the line.
func (e *FileError) Unwrap() error { return e.Err }

// MarshalText is the policy as a file.
func (r Rules) MarshalText() ([]byte, error) { return nil, errNotYet }

// UnmarshalText reads a policy file.
func (r *Rules) UnmarshalText(b []byte) error { return errNotYet }

var errNotYet = errors.New("not there yet")
