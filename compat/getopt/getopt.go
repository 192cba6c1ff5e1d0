package getopt

import (
	"fmt"
	"strings"
)

// Arity is the number of arguments of an option.
type Arity uint8

// The arities. The zero Arity is None.
const (
	None Arity = iota
	Required
	Optional
)

// Option is an option of a program.
type Option struct {
	Name  string // long name without dashes; "" if there is only a letter
	Short byte   // letter; 0 if there is only a long name
	Arity Arity
	// ID identifies the option for the program. Options with the same ID are one option
	// with several names.
	ID string
}

// Grammar describes the options of a program.
type Grammar struct {
	Options []Option
	// InOrder ends the options at the first argument that is not one.
	InOrder bool
}

// Match is an option found on the command line.
type Match struct {
	ID    string
	As    string // complete name, e.g. "-t" or "--tcp-ports"
	Value string // argument; "" if there is none
	Given bool   // there is an argument
}

// Error is a syntax error in a command line, in the words of the C library, without the
// program's name.
type Error struct{ Text string }

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// Parse parses args, which do not include the program's name. It returns the options in
// order, and the other arguments. The error is an *Error; the options before it are
// returned as well.
func (g Grammar) Parse(args []string) (matches []Match, rest []string, err error) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		var met []Match
		switch {
		case arg == "--":
			return matches, append(rest, args...), nil
		case strings.HasPrefix(arg, "--"):
			met, args, err = g.long(arg[2:], args)
		case len(arg) > 1 && arg[0] == '-':
			met, args, err = g.letters(arg[1:], args)
		case g.InOrder:
			return matches, append(append(rest, arg), args...), nil
		default:
			rest = append(rest, arg)
		}
		matches = append(matches, met...)
		if err != nil {
			return matches, nil, err
		}
	}
	return matches, rest, nil
}

// long parses one long option, without its dashes. It returns the arguments after the
// option.
func (g Grammar) long(text string, following []string) ([]Match, []string, error) {
	name, value, given := strings.Cut(text, "=")
	o, err := g.find(name, text)
	if err != nil {
		return nil, nil, err
	}
	m := Match{ID: o.ID, As: "--" + o.Name, Value: value, Given: given}
	switch {
	case given && o.Arity == None:
		return nil, nil, complain("option '%s' doesn't allow an argument", m.As)
	case !given && o.Arity == Required:
		if len(following) == 0 {
			return nil, nil, complain("option '%s' requires an argument", m.As)
		}
		m.Value, m.Given, following = following[0], true, following[1:]
	}
	return []Match{m}, following, nil
}

// find returns the option with this long name or prefix. text is the argument, for
// errors.
func (g Grammar) find(name, text string) (Option, error) {
	var found []Option
	for _, o := range g.Options {
		if o.Name == name && name != "" {
			return o, nil
		}
		if o.Name != "" && strings.HasPrefix(o.Name, name) {
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		return Option{}, complain("unrecognized option '--%s'", text)
	}
	for _, o := range found[1:] {
		if o.ID != found[0].ID || o.Arity != found[0].Arity {
			return Option{}, ambiguous(text, found)
		}
	}
	return found[0], nil
}

func ambiguous(text string, possible []Option) error {
	var b strings.Builder
	for _, o := range possible {
		fmt.Fprintf(&b, " '--%s'", o.Name)
	}
	return complain("option '--%s' is ambiguous; possibilities:%s", text, &b)
}

// letters parses a cluster of one-letter options, without its dash.
func (g Grammar) letters(cluster string, following []string) (met []Match, left []string, err error) {
	for cluster != "" {
		letter := cluster[0]
		cluster = cluster[1:]
		o, known := g.letter(letter)
		if !known {
			return met, nil, complain("invalid option -- '%s'", string(letter))
		}
		m := Match{ID: o.ID, As: "-" + string(letter)}
		switch {
		case o.Arity != None && cluster != "":
			m.Value, m.Given, cluster = cluster, true, ""
		case o.Arity == Required && len(following) == 0:
			return met, nil, complain("option requires an argument -- '%s'", string(letter))
		case o.Arity == Required:
			m.Value, m.Given, following = following[0], true, following[1:]
		}
		met = append(met, m)
	}
	return met, following, nil
}

func (g Grammar) letter(b byte) (Option, bool) {
	for _, o := range g.Options {
		if o.Short == b {
			return o, true
		}
	}
	return Option{}, false
}

func complain(format string, args ...any) error {
	return &Error{Text: fmt.Sprintf(format, args...)}
}
