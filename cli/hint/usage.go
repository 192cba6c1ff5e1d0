package hint

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// UsageError is a mistake in the command line, found before anything started.
type UsageError struct{ err error }

func (e UsageError) Error() string { return e.err.Error() }

func (e UsageError) Unwrap() error { return e.err }

// Usage marks err as a mistake in the command line.
func Usage(err error) error { return UsageError{err} }

// Usagef is an error that exits with 2: the command line was wrong and nothing
// was started.
func Usagef(format string, args ...any) error {
	return UsageError{fmt.Errorf(format, args...)}
}

// BeforeStart marks err, which cmd returned before it began, as a mistake in
// the command line and shows how cmd is called.
func BeforeStart(cmd *cobra.Command, err error) error {
	if errors.As(err, new(hinted)) {
		return UsageError{err}
	}
	return With(Usagef("%s: %w", cmd.CommandPath(), err), "usage: "+cmd.UseLine())
}

// NoCommand is the Args of a command that only groups others.
func NoCommand(cmd *cobra.Command, args []string) error {
	names := CommandNames(cmd)
	if len(args) == 0 {
		return With(Usagef("no command given"),
			fmt.Sprintf("try `%s --help`; commands: %s", cmd.CommandPath(), strings.Join(names, ", ")))
	}
	return With(Usagef("unknown command %q for %q", args[0], cmd.CommandPath()), DidYouMean(args[0], names))
}

// CommandNames are the commands below cmd that a user is told about.
func CommandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// FlagError explains what is wrong with a flag.
func FlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		name := "--" + unknown.GetSpecifiedName()
		return With(Usagef("unknown flag %s for %q", name, cmd.CommandPath()), DidYouMean(name, names))
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && errors.As(err, new(*strconv.NumError)) {
		// What the library says then is a function's name.
		err = fmt.Errorf("invalid argument %q for \"--%s\" flag: want a number", invalid.GetValue(), invalid.GetFlag().Name)
	}
	return With(Usagef("%s: %w", cmd.CommandPath(), err), fmt.Sprintf("try `%s --help`", cmd.CommandPath()))
}
