package getopt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Error is a syntax error in a command line, in the words of the C library, without the
// program's name.
type Error struct{ Text string }

// Error returns the text.
func (e *Error) Error() string { return e.Text }

func complain(format string, args ...any) error {
	return &Error{Text: fmt.Sprintf(format, args...)}
}

// Read applies the options in args to o, from left to right, and returns the other
// arguments. args do not include the program's name. The error is ErrStop, an *Error for a
// syntax error, or names the invalid option and the reason.
func (t Table[O]) Read(o *O, args []string) (rest []string, err error) {
	return t.parse(args, func(r Row[O], as, value string) error {
		err := r.Apply(o, value)
		if err == nil || errors.Is(err, ErrStop) {
			return err
		}
		return fmt.Errorf("%s: %w", strings.TrimSuffix(as+" "+value, " "), err)
	})
}

// found is called for each option on the command line. as is its complete name, "-t" or
// "--tcp-ports".
type found[O any] func(r Row[O], as, value string) error

// parse calls each for the options in args, and returns the other arguments. It ends at the
// first error.
func (t Table[O]) parse(args []string, each found[O]) (rest []string, err error) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "--":
			return append(rest, args...), nil
		case strings.HasPrefix(arg, "--"):
			args, err = t.long(arg[2:], args, each)
		case len(arg) > 1 && arg[0] == '-':
			args, err = t.letters(arg[1:], args, each)
		case t.InOrder:
			return append(append(rest, arg), args...), nil
		default:
			rest = append(rest, arg)
		}
		if err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// long parses one long option, without its dashes. It returns the arguments after the
// option.
func (t Table[O]) long(text string, following []string, each found[O]) (left []string, err error) {
	name, value, given := strings.Cut(text, "=")
	r, err := t.find(name, text)
	if err != nil {
		return nil, err
	}
	as := "--" + r.Name
	switch {
	case given && r.Arg == "":
		return nil, complain("option '%s' doesn't allow an argument", as)
	case !given && r.Arg != "":
		if len(following) == 0 {
			return nil, complain("option '%s' requires an argument", as)
		}
		value, following = following[0], following[1:]
	}
	return following, each(r, as, value)
}

// find returns the option with this long name or prefix. text is the argument, for
// errors.
func (t Table[O]) find(name, text string) (r Row[O], err error) {
	var possible []Row[O]
	for _, r := range t.Rows {
		if r.Name == name {
			return r, nil
		}
		if strings.HasPrefix(r.Name, name) {
			possible = append(possible, r)
		}
	}
	switch len(possible) {
	case 0:
		return r, complain("unrecognized option '--%s'", text)
	case 1:
		return possible[0], nil
	}
	var names strings.Builder
	for _, p := range possible {
		fmt.Fprintf(&names, " '--%s'", p.Name)
	}
	return r, complain("option '--%s' is ambiguous; possibilities:%s", text, &names)
}

// letters parses a cluster of one-letter options, without its dash.
func (t Table[O]) letters(cluster string, following []string, each found[O]) (left []string, err error) {
	for cluster != "" {
		letter := cluster[0]
		cluster = cluster[1:]
		i := slices.IndexFunc(t.Rows, func(r Row[O]) bool { return r.Short == letter })
		if i < 0 {
			return nil, complain("invalid option -- '%s'", string(letter))
		}
		r, value := t.Rows[i], ""
		switch {
		case r.Arg == "":
		case cluster != "":
			value, cluster = cluster, ""
		case len(following) == 0:
			return nil, complain("option requires an argument -- '%s'", string(letter))
		default:
			value, following = following[0], following[1:]
		}
		if err := each(r, "-"+string(letter), value); err != nil {
			return nil, err
		}
	}
	return following, nil
}
