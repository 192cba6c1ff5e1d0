package hint

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A UsageError is a mistake in the command line. Nothing was started.
type UsageError struct{ err error }

func (e UsageError) Error() string { return e.err.Error() }
func (e UsageError) Unwrap() error { return e.err }

// Usage returns err as a UsageError.
func Usage(err error) error { return UsageError{err} }

// Usagef returns a UsageError with a formatted text.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// BeforeStart returns an error of the library about the arguments of cmd, such as their
// number, as a UsageError with the command's usage line.
func BeforeStart(cmd *cobra.Command, err error) error {
	if errors.As(err, new(hinted)) {
		return Usage(err)
	}
	return With(Usagef("%s: %s", cmd.CommandPath(), plain(err.Error())), "usage: "+cmd.UseLine())
}

// The library's texts that plain replaces.
var (
	exclusiveFlags = regexp.MustCompile(`^if any flags in the group .* none of the others can be; \[(.*)\] were all set$`)
	argumentCount  = regexp.MustCompile(`^accepts (at most )?(\d+) arg\(s\), received (\d+)$`)
)

// plain rewrites a text of the library so that it names flags with their dashes.
func plain(text string) string {
	if m := exclusiveFlags.FindStringSubmatch(text); m != nil {
		return "--" + strings.Join(strings.Fields(m[1]), " and --") + " can't be combined"
	}
	if m := argumentCount.FindStringSubmatch(text); m != nil {
		s := "s"
		if m[2] == "1" {
			s = ""
		}
		return "want " + m[1] + m[2] + " argument" + s + ", not " + m[3]
	}
	return text
}

// NoCommand is the Args of a command that only has subcommands: none of them was named.
func NoCommand(cmd *cobra.Command, args []string) error {
	names := CommandNames(cmd)
	if len(args) == 0 {
		return With(Usagef("no command given"),
			fmt.Sprintf("try `%s --help`; commands: %s", cmd.CommandPath(), strings.Join(names, ", ")))
	}
	return With(Usagef("unknown command %q for %q", args[0], cmd.CommandPath()), DidYouMean(args[0], names))
}

// CommandNames returns the names of the subcommands that help lists.
func CommandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// CheckValues returns an error if a flag was given an empty value, which would count as if the
// flag were missing. Scripts whose variables are empty give such flags.
func CheckValues(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if v := f.Value.String(); err == nil && (v == "" || v == "[]") {
			err = Usagef("--%s needs a value", f.Name)
		}
	})
	return err
}

// FlagError returns an error of the library about a flag as a UsageError with a hint.
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
	try := fmt.Sprintf("try `%s --help`", cmd.CommandPath())
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		reason := errors.Unwrap(invalid)
		if errors.As(err, new(*strconv.NumError)) {
			reason = errors.New("want a number") // the library names one of its functions
		}
		return With(Usagef("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), reason), try)
	}
	return With(Usagef("%s: %w", cmd.CommandPath(), err), try)
}
