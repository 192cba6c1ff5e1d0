package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cleat/overlay/registry"
)

// A registry may be an etcd that no host of the cluster runs. Hosts that were given access to it relay the others,
// through their gates: so a host needs no certificate of that etcd, and loses its access when it is removed. The hosts
// with access have the authority's key, as the hosts with members of an embedded registry do.

// errExternal is why the registry is not copied or restored by this program.
var errExternal = &RestoreError{"the registry is an etcd that no host of the cluster runs", "see etcdctl snapshot save, and etcdutl snapshot restore"}

// CheckExternal returns an error unless a new cluster can begin in an etcd: it has no cluster, and no keys of others.
func CheckExternal(ctx context.Context, e *registry.External) error {
	if err := e.Check(); err != nil {
		return err
	}
	c, err := e.Probe(ctx)
	if err == nil && c != nil {
		err = &registry.ExternalError{Text: "the etcd has cluster " + c.ID + " already", Help: "to join it: cleat-node token, on one of its hosts"}
	}
	return err
}

// checkAccess returns an error if a host is given an etcd that is not the registry of a cluster.
func checkAccess(ctx context.Context, e *registry.External, of registry.Cluster) error {
	if e == nil {
		return nil
	}
	if !of.External {
		return &registry.ExternalError{Text: "the hosts of cluster " + of.ID + " run the registry themselves", Help: "leave out --etcd"}
	}
	if err := e.Check(); err != nil {
		return err
	}
	c, err := e.Probe(ctx)
	switch {
	case err != nil:
		return err
	case c == nil:
		return &registry.ExternalError{Text: "the etcd does not have cluster " + of.ID, Help: "is it the one of the other hosts? `cleat-node status` there"}
	case c.ID != of.ID:
		return &registry.ExternalError{Text: fmt.Sprintf("the etcd has cluster %s, and the token is of %s", c.ID, of.ID), Help: "is it the one of the other hosts? `cleat-node status` there"}
	}
	return nil
}

// SetExternal gives a host of a cluster access to the etcd that is its registry, or other access.
func SetExternal(ctx context.Context, path string, e *registry.External) error {
	s, err := Load(path)
	if err == nil && s == nil {
		err = errors.New("this host belongs to no cluster")
	}
	if err != nil {
		return err
	}
	m, err := dir(path).readMirror()
	if err != nil {
		return err
	}
	if err := checkAccess(ctx, e, m.Cluster); err != nil {
		return err
	}
	s.Etcd = e
	return dir(path).writeSettings(*s)
}

func (n *Node) isExternal() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mirror.Cluster.External
}

// governExternal makes this host's record say whether it has access to the registry.
func (n *Node) governExternal(ctx context.Context, self registry.Host) error {
	access := n.self().Etcd != nil
	if self.Member != access || self.Votes != access {
		return n.registry.ChangeHost(ctx, self.Name, func(h *registry.Host) { h.Member, h.Votes = access, access })
	}
	if access {
		return n.fetchAuthority(ctx)
	}
	if err := os.Remove(n.dir.path(authorityFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// leadsExternal reports whether this host is the first one that is alive and has access to the registry. It is called
// with mu held.
func (n *Node) leadsExternal() bool {
	for _, h := range n.mirror.voters() {
		if _, lives := n.mirror.alive[h.Name]; lives {
			return h.Name == n.settings.Host
		}
	}
	return false
}

// lastAccess reports whether the registry is external. It is an error if a host is the only one with access to it.
func (n *Node) lastAccess(host string) (external bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if voters := n.mirror.voters(); n.mirror.Cluster.External && len(voters) == 1 && voters[0].Name == host {
		err = &LastAccessError{host}
	}
	return n.mirror.Cluster.External, err
}

// LastAccessError means that a host can't be removed because no other one has access to the registry.
type LastAccessError struct{ Host string }

func (e *LastAccessError) Error() string {
	return "host " + e.Host + " is the only one with access to the registry"
}
