package container

import (
	"context"
	"errors"

	"cleat/cli/hint"
	"cleat/netns"
	"cleat/netns/find"

	"golang.org/x/sys/unix"
)

// Namespace opens the network namespace that ref names: that of a container or a process, a
// named one, or one at a path.
func Namespace(ctx context.Context, ref string) (*netns.NS, error) {
	found, err := find.Container(ctx, ref, find.Options{})
	var unasked *find.Unasked
	switch {
	case errors.As(err, &unasked):
		return nil, err // it has hints
	case err != nil:
		return nil, EnterHint(err)
	}
	ns, err := found.NS()
	return ns, EnterHint(err)
}

// EnterHint adds to a permission error how to enter a namespace.
func EnterHint(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return hint.With(err, "run it with sudo; for your own namespaces: nsenter --user --preserve-credentials --target PID cleat …")
	}
	return err
}
