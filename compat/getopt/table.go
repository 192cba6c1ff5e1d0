package getopt

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Row is one option of a program whose command line is read into an O: how it is
// spelled and what it does.
type Row[O any] struct {
	Name  string // the long name, without dashes
	Short byte   // the letter; 0: none
	Arg   string // the argument's name in the help; "": takes none
	Help  string // "": not shown
	// Apply does what the option asks for. The value is its argument, "" where it
	// takes none. An error says what is wrong with it, ErrStop that no more is to
	// be read.
	Apply func(o *O, value string) error
}

// ErrStop ends the reading of options: --help and --version do so.
var ErrStop = errors.New("no more options")

// Table is every option of a program, in the order of its help.
type Table[O any] struct {
	Rows []Row[O]
	// InOrder ends the options at the first argument that is none.
	InOrder bool
}

// Read applies the options of args to o, from left to right, and returns the
// other arguments. The error is ErrStop, an *Error where the form is wrong, or
// says which option can't be, and why.
func (t Table[O]) Read(o *O, args []string) (rest []string, err error) {
	grammar := Grammar{InOrder: t.InOrder}
	apply := map[string]func(*O, string) error{}
	for _, r := range t.Rows {
		opt := Option{Name: r.Name, Short: r.Short, ID: r.Name}
		if r.Arg != "" {
			opt.Arity = Required
		}
		grammar.Options = append(grammar.Options, opt)
		apply[r.Name] = r.Apply
	}
	met, rest, wrong := grammar.Parse(args)
	for _, m := range met {
		switch err := apply[m.ID](o, m.Value); {
		case errors.Is(err, ErrStop):
			return nil, ErrStop
		case err != nil:
			return nil, fmt.Errorf("%s: %w", strings.TrimSuffix(m.As+" "+m.Value, " "), err)
		}
	}
	return rest, wrong
}

// WriteHelp writes a line for each option that has a help, or two where it is
// spelled at length.
func (t Table[O]) WriteHelp(w io.Writer) {
	for _, r := range t.Rows {
		if r.Help != "" {
			fmt.Fprint(w, r.usage())
		}
	}
}

// usage is the option's line of the help.
func (r Row[O]) usage() string {
	left := "      --" + r.Name
	if r.Short != 0 {
		left = "  -" + string(r.Short) + ", --" + r.Name
	}
	if r.Arg != "" {
		left += " " + r.Arg
	}
	const column = 32
	gap := column - len(left)
	if gap <= 0 {
		left, gap = left+"\n", column
	}
	return left + strings.Repeat(" ", gap) + r.Help + "\n"
}

// Set is for options that set a flag.
func Set[O any](field func(*O) *bool) func(*O, string) error {
	return func(o *O, _ string) error { *field(o) = true; return nil }
}

// Last is Set for options after which no more is read.
func Last[O any](field func(*O) *bool) func(*O, string) error {
	return func(o *O, _ string) error { *field(o) = true; return ErrStop }
}

// Refuse is for options that can't be honoured.
func Refuse[O any](why string) func(*O, string) error {
	return func(*O, string) error { return errors.New("is not supported: " + why) }
}

// Accept is for options that ask for what is so anyhow.
func Accept[O any](*O, string) error { return nil }
