package overlay

import (
	"context"
	"errors"
	"net"
	"time"

	"cleat/overlay/gate"
)

const (
	// removedAfter is how long hosts of the cluster must refuse this host until it counts as removed. A host
	// that has just joined is refused by those that have not heard of it yet.
	removedAfter = 5 * time.Second
	// removedPause is the time between attempts of a removed host to reach the registry.
	removedPause = time.Minute
)

// removal is what this host knows about its own removal from the cluster.
type removal struct {
	refused time.Time // since when hosts refuse this one, and none has admitted it
	tried   time.Time // when it last tried to reach the registry
	sure    bool      // it was removed
}

// errRemoved is the problem of a host that was removed.
var errRemoved = errors.New("this host was removed from the cluster; its networks and containers stay as they are. " +
	"To join again: cleat-node down; cleat-node up --token TOKEN")

// isRemoved reports whether this host was removed from the cluster.
func (n *Node) isRemoved() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.removal.sure
}

// dialRegistry connects to a member of the registry: to the one of this host by its socket.
func (n *Node) dialRegistry(ctx context.Context, endpoint string) (net.Conn, error) {
	n.mu.Lock()
	etcd := n.settings.Etcd
	own := n.member != nil && endpoint == n.settings.gate().String()
	wait := n.removal.sure && time.Since(n.removal.tried) < removedPause
	if !wait {
		n.removal.tried = time.Now()
	}
	n.mu.Unlock()
	if etcd != nil && etcd.Has(endpoint) {
		return etcd.Dial(ctx, endpoint)
	}
	if own {
		return n.dialMember(ctx)
	}
	if wait {
		return nil, errRemoved
	}
	c, err := n.gate.Dial(ctx, endpoint, gate.Registry, n.admit)
	n.learn(err)
	return c, err
}

// learn notes what the outcome of an attempt to reach the registry says about this host's removal.
func (n *Node) learn(err error) {
	switch {
	case err == nil:
		n.readmitted()
	case errors.As(err, new(*gate.RemovedError)):
		n.refused()
	}
}

// refused notes that a host of the cluster has refused this one.
func (n *Node) refused() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.answers { // the registry knows better than a host that was away
		return
	}
	if n.removal.refused.IsZero() {
		n.removal.refused = time.Now()
	}
	if time.Since(n.removal.refused) >= removedAfter {
		n.setRemoved(true)
	}
}

// readmitted notes that a host of the cluster has admitted this one.
func (n *Node) readmitted() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removal.refused = time.Time{}
	n.setRemoved(false)
}

// setRemoved remembers whether this host was removed, also in its settings: then it can join again. It is called
// with mu held.
func (n *Node) setRemoved(removed bool) {
	if n.removal.sure == removed && n.settings.Removed == removed {
		return
	}
	n.removal.sure = removed
	if removed {
		n.problems["removed"], n.problemSince["removed"] = errRemoved.Error(), time.Now()
		n.cfg.Log("%v", errRemoved)
	} else {
		delete(n.problems, "removed")
		delete(n.problemSince, "removed")
		n.cfg.Log("this host takes part in the cluster again")
	}
	n.settings.Removed = removed
	if err := n.dir.writeSettings(*n.settings); err != nil {
		n.cfg.Log("%v", err)
	}
}
