package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cleat/cli/hint"
	"cleat/netns"
	"cleat/netns/find"
	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// Config returns the store of attachments, and how to find containers.
func Config() (attach.Config, error) {
	store, err := attach.OpenStore("")
	return attach.Config{Store: store, Find: Find}, err
}

// Find returns the container that ref names, and its network namespace.
func Find(ctx context.Context, ref string) (attach.Container, *netns.NS, error) {
	c := attach.Container{Ref: ref}
	getenv := CallerOf(ctx).Getenv
	f, err := find.Container(ctx, ref, getenv)
	if err != nil {
		return c, nil, err
	}
	ns, err := f.NS()
	if err != nil {
		return c, nil, err
	}
	if c, err = attachable(f); err != nil {
		ns.Close()
		return c, nil, err
	}
	c.Ref = ref
	return c, ns, nil
}

// attachable converts a container to the form that attachments store. Its name stays the same
// after a restart, and is unique among the containers of the engine.
func attachable(f *find.Found) (attach.Container, error) {
	// A name of the namespace, which package find lists as well, is not a container.
	sharers := slices.DeleteFunc(slices.Clone(f.SharesWith), func(ref string) bool { return strings.HasPrefix(ref, find.Named+":") })
	c := attach.Container{Engine: f.Engine, ID: f.ID, PID: f.PID, OwnerUID: f.Owner, SharedWith: strings.Join(sharers, ", "), SilentEngines: strings.Join(f.Silent, " and "), Path: fmt.Sprintf("/proc/%d/ns/net", f.PID)}
	switch f.Engine {
	case find.Process:
		c.Name = strconv.Itoa(f.PID)
	case find.Named:
		c.Name, c.Path = f.Name, filepath.Join("/run/netns", f.Name)
	case find.Path:
		path, err := filepath.Abs(f.Name)
		if err != nil {
			return c, fmt.Errorf("find %s: %w", f, err)
		}
		c.Name, c.Path = path, path
	default:
		c.Name, c.HostNetwork = cmp.Or(f.Name, f.ID), f.Host
		if f.Space != "" {
			c.Name = f.Space + "/" + c.Name
		}
	}
	return c, nil
}

// A Caller is the process for which a command line is run.
type Caller struct {
	Getenv     func(string) string // as os.Getenv
	Background *sync.WaitGroup     // for work that may outlast the command; nil: none may
}

type callerKey struct{}

// WithCaller returns a context for a command that is run for another process.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the process for which a command runs: its own, unless WithCaller says
// otherwise.
func CallerOf(ctx context.Context) Caller {
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Getenv: os.Getenv}
}

// Namespace opens the network namespace that ref names: that of a container or a process, a
// named one, or one at a path.
func Namespace(ctx context.Context, ref string) (*netns.NS, error) {
	found, err := find.Container(ctx, ref, nil)
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
