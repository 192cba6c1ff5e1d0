package container

import (
	"context"
	"errors"

	"cleat/cli/hint"
	"cleat/netns"
	"cleat/netns/find"

	"golang.org/x/sys/unix"
)

// Namespace opens the network of what a word of the command line names: a
// container, a process, a named namespace, or a path.
func Namespace(ctx context.Context, ref string) (*netns.NS, error) {
	found, err := find.Container(ctx, ref, find.Options{})
	var unasked *find.Unasked
	switch {
	case errors.As(err, &unasked):
		return nil, err // it has hints of its own
	case err != nil:
		return nil, EnterHint(err)
	}
	ns, err := found.NS()
	return ns, EnterHint(err)
}

// EnterHint says how to be allowed into a namespace.
func EnterHint(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return hint.With(err, "run it with sudo; for namespaces of your own run it as: nsenter --user --preserve-credentials --target PID cleat …")
	}
	return err
}
