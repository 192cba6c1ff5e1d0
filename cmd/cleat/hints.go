package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cleat/bench/experiment"
	"cleat/internal/columns"
	"cleat/internal/spell"
	"cleat/netns/find"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The exit codes of every command.
const (
	exitFailed     = 1
	exitUsage      = 2
	exitRegression = 3
	exitSignal     = 128 // plus the signal's number, as shells do
)

// errRegression says that something became worse than a threshold allows. A
// command that returns it has already printed what.
var errRegression = errors.New("regression found")

// exitStatus ends the program with another process's exit code and prints
// nothing: that process, such as this program inside a lab, has said it all.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// exitError ends the program with an exit code of its own, after printing err.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

// exitWith ends the program with an exit code of its own, after printing err.
func exitWith(code int, err error) error { return exitError{code, err} }

// usageError is a mistake in the command line, found before anything started.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// asUsage marks err as a mistake in the command line.
func asUsage(err error) error { return usageError{err} }

// usagef is an error that exits with 2: the command line was wrong and nothing
// was started.
func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// beforeStart marks err, which cmd returned before it began, as a mistake in
// the command line and shows how cmd is called.
func beforeStart(cmd *cobra.Command, err error) error {
	if errors.As(err, new(hinted)) {
		return usageError{err}
	}
	return withHint(usagef("%s: %w", cmd.CommandPath(), err), "usage: "+cmd.UseLine())
}

// hinted is an error together with what to do about it.
type hinted struct {
	err  error
	hint string
}

func (e hinted) Error() string { return e.err.Error() }
func (e hinted) Unwrap() error { return e.err }
func (e hinted) Hint() string  { return e.hint }

// withHint adds to err what to type or to change; the door prints it on lines
// of its own. An empty hint adds nothing, and nil stays nil.
func withHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return hinted{err, hint}
}

// report prints err and its hints and returns the exit code. cause is why the
// command's context ended, nil if it did not.
func report(w io.Writer, err, cause error) int {
	var stopped signalled
	if errors.As(cause, &stopped) {
		if err != nil && !errors.Is(err, context.Canceled) && !errors.As(err, new(signalled)) && !errors.As(err, new(exitStatus)) {
			printError(w, err)
		}
		return exitSignal + int(stopped.signal)
	}
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, errRegression):
		return exitRegression
	case unread(err):
		return exitSignal + int(syscall.SIGPIPE)
	}
	printError(w, err)
	var coded exitError
	switch {
	case errors.As(err, &coded):
		return coded.code
	case isUsage(err):
		return exitUsage
	}
	return exitFailed
}

// unread tells whether err is that nobody reads our output any more, which is
// what SIGPIPE ends other programs for.
func unread(err error) bool {
	var path *fs.PathError
	return errors.Is(err, syscall.EPIPE) && errors.As(err, &path) &&
		(path.Path == os.Stdout.Name() || path.Path == os.Stderr.Name())
}

// isUsage tells whether err is about what was asked for: the command line, an
// experiment that was named or written wrongly, or a container that nobody has, or
// several.
func isUsage(err error) bool {
	return errors.As(err, new(usageError)) || errors.As(err, new(*experiment.Error)) ||
		errors.As(err, new(*find.NotFound)) || errors.As(err, new(*find.Ambiguous))
}

func printError(w io.Writer, err error) {
	text, all := err.Error(), hints(err)
	for _, h := range all { // a link.Lack has it in its text, too, for those who print no hints
		text = strings.TrimSuffix(text, " ("+h+")")
	}
	fmt.Fprintf(w, "cleat: error: %s\n", columns.PlainLines(text))
	for _, h := range all {
		for line := range strings.Lines(h) {
			fmt.Fprintf(w, "cleat: hint: %s\n", columns.Plain(strings.TrimRight(line, "\n")))
		}
	}
}

// hints are the remedies that err carries, outermost first, each once.
func hints(err error) []string {
	var all []string
	add := func(h string) {
		if h != "" && !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	if e, is := err.(interface{ Hint() string }); is {
		add(e.Hint())
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		for _, h := range hints(e.Unwrap()) {
			add(h)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			for _, h := range hints(inner) {
				add(h)
			}
		}
	}
	return all
}

// didYouMean is a hint that names the nearest known word, or lists all of them
// where none is near. Words that mean something to a shell, as names of links may, are
// quoted.
func didYouMean(word string, known []string) string {
	if n := spell.Nearest(word, known); n != "" && n != columns.Word(n) {
		return "did you mean " + columns.Word(n) + "?"
	}
	quoted := make([]string, len(known))
	for i, k := range known {
		quoted[i] = columns.Word(k)
	}
	return spell.Hint(word, quoted)
}

// noArgsButCommands is the Args of a command that only groups others.
func noArgsButCommands(cmd *cobra.Command, args []string) error {
	names := commandNames(cmd)
	if len(args) == 0 {
		return withHint(usagef("no command given"),
			fmt.Sprintf("try `%s --help`; commands: %s", cmd.CommandPath(), strings.Join(names, ", ")))
	}
	return withHint(usagef("unknown command %q for %q", args[0], cmd.CommandPath()), didYouMean(args[0], names))
}

// commandNames are the commands below cmd that a user is told about.
func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// flagError explains what is wrong with a flag.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		name := "--" + unknown.GetSpecifiedName()
		return withHint(usagef("unknown flag %s for %q", name, cmd.CommandPath()), didYouMean(name, names))
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && errors.As(err, new(*strconv.NumError)) {
		// What the library says then is a function's name.
		err = fmt.Errorf("invalid argument %q for \"--%s\" flag: want a number", invalid.GetValue(), invalid.GetFlag().Name)
	}
	return withHint(usagef("%s: %w", cmd.CommandPath(), err), fmt.Sprintf("try `%s --help`", cmd.CommandPath()))
}
