package getopt

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Row is an option of a program whose command line is parsed into an O.
type Row[O any] struct {
	Name  string // long name without dashes
	Short byte   // letter; 0 if there is none
	Arg   string // name of the argument in the help; "" if there is no argument
	Help  string // "" hides the option
	// Apply applies the option to o. value is the option's argument. An error says what
	// is wrong with the value; ErrStop ends the parsing.
	Apply func(o *O, value string) error
}

// ErrStop ends the parsing of options, for --help and --version.
var ErrStop = errors.New("stop parsing options")

// Table is the list of a program's options, in the order of its help.
type Table[O any] struct {
	Rows []Row[O]
	// InOrder ends the options at the first argument that is not one.
	InOrder bool
}

// WriteHelp writes the help of each visible option.
func (t Table[O]) WriteHelp(w io.Writer) {
	for _, r := range t.Rows {
		if r.Help != "" {
			fmt.Fprint(w, r.usage())
		}
	}
}

// usage returns the option's line of the help, or two lines if its name is long.
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

// Set returns an Apply function that sets a flag.
func Set[O any](field func(*O) *bool) func(*O, string) error {
	return func(o *O, _ string) error { *field(o) = true; return nil }
}

// Last is Set for options that end the parsing.
func Last[O any](field func(*O) *bool) func(*O, string) error {
	return func(o *O, _ string) error { *field(o) = true; return ErrStop }
}

// Refuse returns an Apply function for unsupported options.
func Refuse[O any](why string) func(*O, string) error {
	return func(*O, string) error { return errors.New("is not supported: " + why) }
}

// Accept is an Apply function for options that have no effect here.
func Accept[O any](*O, string) error { return nil }
