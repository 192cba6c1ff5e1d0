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

// Exit codes. The last three are those of shells.
const (
	Failed        = 1
	Usage         = 2 // the command line was wrong; nothing was started
	Regression    = 3
	NotExecutable = 126 // a program can't be executed
	NotFound      = 127 // there is no such program
	Signal        = 128 // plus the signal's number
)

// ErrRegression reports that something became worse than a threshold allows. The command has
// already printed what did.
var ErrRegression = errors.New("regression found")

// Status is the exit code of another process, such as this program inside a lab, with which
// the command ends as well. Nothing is printed: that process has done so.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Error is an error with an exit code of its own.
type Error struct {
	Code int
	err  error
}

func (e Error) Error() string { return e.err.Error() }
func (e Error) Unwrap() error { return e.err }

// With returns err with an exit code of its own.
func With(code int, err error) error { return Error{code, err} }

// Report prints the error that a command returned, with its hints, and returns the exit code.
// cause is the cause of the end of the command's context, if it has ended.
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
	case isBrokenPipe(err):
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

// isBrokenPipe reports whether err comes from writing output that nobody reads any more, for
// which SIGPIPE ends other programs.
func isBrokenPipe(err error) bool {
	var path *fs.PathError
	return errors.Is(err, syscall.EPIPE) && errors.As(err, &path) &&
		(path.Path == os.Stdout.Name() || path.Path == os.Stderr.Name())
}

// IsUsage reports whether the user has to change the command line, or the experiment that it
// names: a container that does not exist, or a name that several have, counts as well.
func IsUsage(err error) bool {
	return errors.As(err, new(hint.UsageError)) || errors.As(err, new(*experiment.Error)) ||
		errors.As(err, new(*find.NotFound)) || errors.As(err, new(*find.Ambiguous))
}
