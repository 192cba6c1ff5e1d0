package overlay

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"cleat/overlay/gate"
	"cleat/overlay/member"
	"cleat/overlay/registry"
)

// endpoints returns the registry's endpoints: this host's own member alone, if it votes and answers, or else the gates of
// all others that vote. The client would send requests to each of them in turn, dead or not. It is called with mu held.
func (n *Node) endpoints() (all []string) {
	if n.settings.Etcd != nil {
		return n.settings.Etcd.Endpoints()
	}
	if n.member != nil && n.member.Votes() && !n.lost() {
		return []string{registry.Address(n.settings.gate())}
	}
	voters := n.mirror.voters()
	for _, h := range voters {
		if h.Name != n.settings.Host || len(voters) == 1 { // this host's may have been removed
			all = append(all, registry.Address(h.Gate()))
		}
	}
	return all
}

// followMembers makes the registry's client use the endpoints as they are now.
func (n *Node) followMembers() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.endpoints()
	if n.member != nil {
		if err := n.member.Link(n.memberHosts()); err != nil {
			n.cfg.Log("%v", err)
		}
	}
	if n.registry != nil && !slices.Equal(now, n.registry.Endpoints()) {
		n.registry.SetEndpoints(now)
	}
	return now
}

// lost reports whether the registry has not answered for some time. The member of this host may be cut off: it refuses
// one of which this host has not heard yet, and that may be the leader. It is called with mu held.
func (n *Node) lost() bool { return !n.answers && time.Since(n.answered) >= lostAfter }

func (n *Node) startMember(cluster []string) error {
	n.mu.Lock()
	others := n.memberHosts()
	n.mu.Unlock()
	cfg := member.Config{Host: n.settings.Host, Dir: n.dir.path(registryDir), Sockets: n.cfg.Dir, Dial: n.dialPeer, Cluster: cluster, Others: others, ID: n.settings.Cluster, Log: n.cfg.Log}
	if n.cfg.Restart != nil {
		cfg.Broken = n.broken
	}
	m, err := member.Start(cfg)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.member = m
	n.mu.Unlock()
	n.followMembers()
	return nil
}

// memberHosts returns the hosts with members of the registry. It is called with mu held.
func (n *Node) memberHosts() (hosts []string) {
	for _, h := range n.mirror.members() {
		hosts = append(hosts, h.Name)
	}
	return hosts
}

// dialPeer connects to the registry's member on another host.
func (n *Node) dialPeer(ctx context.Context, host string) (net.Conn, error) {
	n.mu.Lock()
	h, known := n.mirror.Hosts[host]
	n.mu.Unlock()
	if !known {
		return nil, &registry.NotFoundError{What: "host " + host}
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin) // a process that hangs accepts and says nothing
	defer cancel()
	c, err := n.dialHost(ctx, h, gate.Peer)
	n.learn(err) // a member that was cut off before it heard of its removal is asked by nobody else
	return c, err
}

// connections are those to this host's member of the registry.
type connections struct {
	mu  sync.Mutex
	all map[*connection]bool
}

type connection struct {
	net.Conn
	of *connections
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.all, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// dialMember connects to this host's member of the registry, or to the etcd to which it has access.
func (n *Node) dialMember(ctx context.Context) (net.Conn, error) {
	if e := n.self().Etcd; e != nil {
		return e.DialAny(ctx)
	}
	to, err := member.DialClients(n.cfg.Dir)(ctx)
	if err != nil {
		return nil, err
	}
	c := &connection{to, &n.toMember}
	n.toMember.mu.Lock()
	defer n.toMember.mu.Unlock()
	if n.toMember.all == nil {
		n.toMember.all = map[*connection]bool{}
	}
	n.toMember.all[c] = true
	return c, nil
}

// close closes all connections. A member that ends would wait for them for seconds.
func (c *connections) close() {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.all))
	c.mu.Unlock()
	for _, one := range all {
		one.Close()
	}
}

func (n *Node) stopMember() { n.endMember((*member.Member).Close) }

func (n *Node) endMember(end func(*member.Member)) {
	n.mu.Lock()
	m := n.member
	n.member = nil
	n.mu.Unlock()
	if m != nil {
		m.StopServing()
		n.toMember.close()
		end(m)
	}
}

// removeMember ends this host's member of the registry and deletes its data.
func (n *Node) removeMember() error {
	n.stopMember()
	return errors.Join(os.RemoveAll(n.dir.path(registryDir)), os.RemoveAll(n.dir.path(authorityFile)))
}
