package exit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"cleat/bench/experiment"
	"cleat/cli/hint"
	"cleat/netns/find"
)

// The exit codes of every command.
const (
	Failed     = 1
	Usage      = 2
	Regression = 3
	Signal     = 128 // plus the signal's number, as shells do
)

// ErrRegression says that something became worse than a threshold allows. A
// command that returns it has already printed what.
var ErrRegression = errors.New("regression found")

// Status ends the program with another process's exit code and prints
// nothing: that process, such as this program inside a lab, has said it all.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Error ends the program with an exit code of its own, after printing err.
type Error struct {
	Code int
	err  error
}

func (e Error) Error() string { return e.err.Error() }

func (e Error) Unwrap() error { return e.err }

// With ends the program with an exit code of its own, after printing err.
func With(code int, err error) error { return Error{code, err} }

// Report prints err and its hints and returns the exit code. cause is why the
// command's context ended, nil if it did not.
func Report(w io.Writer, err, cause error) int {
	var stopped Signalled
	if errors.As(cause, &stopped) {
		if err != nil && !errors.Is(err, context.Canceled) && !errors.As(err, new(Signalled)) && !errors.As(err, new(Status)) {
			hint.Print(w, err)
		}
		return Signal + int(stopped.Signal)
	}
	var status Status
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, ErrRegression):
		return Regression
	case outputClosedError(err):
		return Signal + int(syscall.SIGPIPE)
	}
	hint.Print(w, err)
	var coded Error
	switch {
	case errors.As(err, &coded):
		return coded.Code
	case IsUsage(err):
		return Usage
	}
	return Failed
}

// outputClosedError tells whether err is that nobody reads our output any more, which is
// what SIGPIPE ends other programs for.
func outputClosedError(err error) bool {
	var path *fs.PathError
	return errors.Is(err, syscall.EPIPE) && errors.As(err, &path) &&
		(path.Path == os.Stdout.Name() || path.Path == os.Stderr.Name())
}

// IsUsage tells whether err is about what was asked for: the command line, an
// experiment that was named or written wrongly, or a container that nobody has, or
// several.
func IsUsage(err error) bool {
	return errors.As(err, new(hint.UsageError)) || errors.As(err, new(*experiment.Error)) ||
		errors.As(err, new(*find.NotFound)) || errors.As(err, new(*find.Ambiguous))
}

// The exit codes of a command that could not be started, as shells have them.
const (
	NotExecutable = 126
	NotFound      = 127
)
