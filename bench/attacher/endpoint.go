package attacher

import (
	"context"
	"fmt"
	"time"

	"cleat/bench/named"
	"cleat/lab"
	"cleat/netns"
)

// endpoint is a container that is attached, or to be attached.
type endpoint struct {
	serial    int
	ns        *netns.NS
	container connectable // of a network that makes containers; nil: there is only the namespace
}

// connectable is a container that a network connects by itself.
type connectable interface {
	Connect(context.Context) (named.Usage, error)
	Disconnect(context.Context) (named.Usage, error)
	Close() error
}

// bySelf is the part of a driver whose endpoints are containers of a network. What its program leaves behind when the
// last is disconnected belongs to the network.
type bySelf struct{}

func (bySelf) attach(ctx context.Context, e endpoint) (named.Usage, error) {
	return e.container.Connect(ctx)
}

func (bySelf) detach(ctx context.Context, e endpoint) (named.Usage, error) {
	return e.container.Disconnect(ctx)
}

func (bySelf) removed() error { return nil }

func (e endpoint) close() error {
	if e.container != nil {
		return e.container.Close()
	}
	return e.ns.Close()
}

// inside is the name of the link in containers that have no other.
const inside = "eth0"

// bareEndpoints is the part of a driver whose containers are network namespaces and
// nothing else.
type bareEndpoints struct{}

func (bareEndpoints) newEndpoint(_ context.Context, serial int) (endpoint, error) {
	n, err := lab.NewNode(fmt.Sprintf("container%d", serial))
	if err != nil {
		return endpoint{}, err
	}
	return endpoint{serial: serial, ns: n.NS}, nil
}

// usable reports whether a container has an address of the network that is not
// tentative, on a link that is up.
func usable(e endpoint) (bool, error) {
	a, err := named.UsableAddress(e.ns)
	return a.IsValid(), err
}

const (
	usablePoll    = 100 * time.Microsecond
	usableTimeout = 5 * time.Second // after the end of the command
)

// awaitUsable waits until the container's address can be used, and returns when that
// was. The zero time means that it could be used at once.
func awaitUsable(ctx context.Context, e endpoint) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, usableTimeout, fmt.Errorf("the address can't be used %s after the end of the command", usableTimeout))
	defer cancel()
	for first := true; ; first = false {
		ok, err := usable(e)
		switch {
		case err != nil:
			return time.Time{}, err
		case ok && first:
			return time.Time{}, nil
		case ok:
			return time.Now(), nil
		}
		select {
		case <-time.After(usablePoll):
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
}
