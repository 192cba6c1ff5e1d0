package overlay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cleat/overlay/member"
	"cleat/overlay/registry"
)

// A registry that was restored from a backup has an older state. Hosts go by what they know:
//
//   - A host knows by itself which blocks it has. It registers those again that the registry lacks, and releases
//     those that the registry has for it though it gave them away since.
//   - What the registry lacks stays in the mirrors of all hosts, which therefore admit hosts that it lacks, and don't
//     claim blocks that it lacks. Each host registers itself again. The leader registers hosts, networks and blocks
//     again, also those of dead hosts, of which nobody else would.
//   - A host that was removed since the backup was made is in it. All hosts know the tombstones of such hosts, and
//     register these again, which removes the host.
//
// The first host that sees the new registry is the one that has restored it, and it knew the registry before. Once the
// registry has everything again (Cluster.Recovered), hosts that come back go by what it has.
//
// An etcd that no host runs is restored by others, who tell nobody. Hosts notice that its history is another one
// (registry.Follow), and the leader gives it a new incarnation.

// The following are the keys of records in mirror.Lost. Names of networks and hosts have no slash.

const lostCluster = "cluster/" // an etcd that no host runs may have lost everything

func blockKey(b registry.Block) string     { return b.Network + "/" + b.Prefix.String() }
func hostKey(name string) string           { return "host/" + name + "/" }
func tombstoneKey(pin string) string       { return "removed/" + pin + "/" }
func (m *mirror) hostIsLost(h string) bool { return m.Lost[hostKey(h)] }

// keys returns the keys of all records that a restored registry may lack.
func (m *mirror) keys() map[string]bool {
	all := map[string]bool{lostCluster: true}
	for name := range m.Hosts {
		all[hostKey(name)] = true
	}
	for name := range m.Networks {
		all[name] = true
	}
	for _, blocks := range m.Blocks {
		for _, b := range blocks {
			all[blockKey(b)] = true
		}
	}
	for pin := range m.Removed {
		all[tombstoneKey(pin)] = true
	}
	return all
}

// withoutForeign returns the records of a restored registry that don't contradict what this host knows: which blocks
// it has, and who was removed.
func (m *mirror) withoutForeign(all []registry.Change) []registry.Change {
	return slices.DeleteFunc(slices.Clone(all), func(c registry.Change) bool {
		switch {
		case c.Host != nil:
			_, buried := m.Removed[c.Host.Pin]
			return buried
		case c.Block != nil:
			was, known := m.Blocks[c.Block.Network][c.Block.Prefix.String()]
			had := known && was.Host == m.self
			if c.Block.Host == m.self && !had {
				m.Surplus[blockKey(*c.Block)] = *c.Block
			}
			return had != (c.Block.Host == m.self)
		}
		return false
	})
}

// keepLost takes over what a restored registry has not got again since an earlier update: there was an error, or this
// host has started again.
func (m *mirror) keepLost(old *mirror) {
	m.Lost = old.Lost
	for name, h := range old.Hosts {
		if m.hostIsLost(name) {
			m.Hosts[name] = h
		}
	}
	for name, net := range old.Networks {
		if m.Lost[name] {
			m.Networks[name] = net
		}
	}
	for network, blocks := range old.Blocks {
		for prefix, b := range blocks {
			if m.Lost[blockKey(b)] {
				if m.Blocks[network] == nil {
					m.Blocks[network] = map[string]registry.Block{}
				}
				m.Blocks[network][prefix] = b
			}
		}
	}
	for pin, t := range old.Removed {
		if m.Lost[tombstoneKey(pin)] {
			m.Removed[pin] = t
		}
	}
}

// withoutLost is withoutForeign for a later update: surplus are the blocks that this host has not released yet.
func (m *mirror) withoutLost(all []registry.Change, surplus map[string]registry.Block) []registry.Change {
	return slices.DeleteFunc(slices.Clone(all), func(c registry.Change) bool {
		switch {
		case c.Host != nil:
			_, buried := m.Removed[c.Host.Pin]
			return buried
		case c.Block != nil:
			key := blockKey(*c.Block)
			if _, is := surplus[key]; is && c.Block.Host == m.self {
				m.Surplus[key] = *c.Block
				return true
			}
			return m.Lost[key] && m.Blocks[c.Block.Network][c.Block.Prefix.String()].Host == m.self && c.Block.Host != m.self
		}
		return false
	})
}

// dropLost drops blocks that a restored registry lacks and never gets: their host or network does not exist.
func (m *mirror) dropLost() {
	for network, blocks := range m.Blocks {
		_, exists := m.Networks[network]
		for prefix, b := range blocks {
			if _, known := m.Hosts[b.Host]; m.Lost[blockKey(b)] && !(exists && known) {
				delete(blocks, prefix)
				delete(m.Lost, blockKey(b))
			}
		}
	}
}

// bury removes what a restored registry lacks of a host that was removed.
func (m *mirror) bury(t registry.Tombstone) {
	h, known := m.Hosts[t.Host]
	if !known || h.Pin != t.Pin {
		return
	}
	delete(m.Hosts, t.Host)
	delete(m.Lost, hostKey(t.Host))
	for _, blocks := range m.Blocks {
		for prefix, b := range blocks {
			if b.Host == t.Host && m.Lost[blockKey(b)] {
				delete(blocks, prefix)
				delete(m.Lost, blockKey(b))
			}
		}
	}
}

// registerAgain makes a registry that was restored from a backup what this host knows.
func (n *Node) registerAgain(ctx context.Context) error {
	n.mu.Lock()
	m, leads := n.mirror.copy(), n.leads()
	n.mu.Unlock()
	if !n.listedNow() {
		return nil
	}
	if len(m.Lost) == 0 && len(m.Surplus) == 0 && !m.Renew {
		return n.recovered(ctx, m, leads)
	}
	var errs []error
	for pin, t := range m.Removed {
		if m.Lost[tombstoneKey(pin)] {
			n.cfg.Log("the registry was restored without the removal of host %s, which is removed again", t.Host)
			errs = append(errs, n.registry.Bury(ctx, t))
		}
	}
	for name, h := range m.Hosts {
		if m.hostIsLost(name) && (leads || name == m.self) {
			errs = append(errs, n.registerHost(ctx, h))
		}
	}
	if m.Lost[lostCluster] && leads && m.Cluster.External {
		if err := n.initAgain(ctx, m); err != nil && !errors.As(err, new(*registry.TakenError)) {
			errs = append(errs, err)
		}
	}
	if m.Renew && leads && !m.Lost[lostCluster] {
		own := n.self().Incarnation
		errs = append(errs, n.registry.ChangeCluster(ctx, func(c *registry.Cluster) {
			c.Incarnation = nextIncarnation(max(c.Incarnation, own), newNonce())
		}))
	}
	for name, net := range m.Networks {
		if !m.Lost[name] {
			continue
		}
		n.cfg.Log("the registry was restored without network %s, and gets it again", name)
		if err := n.registry.CreateNetwork(ctx, net); err != nil && !errors.As(err, new(*registry.TakenError)) {
			errs = append(errs, err)
		}
	}
	for _, b := range m.Surplus {
		n.cfg.Log("the registry was restored with block %s of network %s, which this host does not have any more", b.Prefix, b.Network)
		errs = append(errs, n.registry.ReleaseBlock(ctx, b))
	}
	for _, blocks := range m.Blocks {
		for _, b := range blocks {
			if m.Lost[blockKey(b)] && (leads || b.Host == m.self) {
				errs = append(errs, n.registerBlock(ctx, b))
			}
		}
	}
	return errors.Join(errs...)
}

// initAgain makes an empty etcd, which no host runs, the registry of the cluster. All hosts then treat it as one that
// was restored.
func (n *Node) initAgain(ctx context.Context, m *mirror) error {
	c := m.Cluster
	c.Incarnation = nextIncarnation(max(c.Incarnation, n.self().Incarnation), newNonce())
	n.cfg.Log("the registry is empty, and gets everything again")
	return n.registry.Init(ctx, c, m.Hosts[m.self])
}

// recoverAfter is how long hosts have to register what a restored registry lacks. For those that come later it is a
// registry like any other: what it lacks was removed, or others have it now.
const recoverAfter = time.Minute

// recovered notes that a registry that was restored has everything again.
func (n *Node) recovered(ctx context.Context, m *mirror, leads bool) error {
	n.mu.Lock()
	since := n.listedAt
	n.mu.Unlock()
	now := m.Cluster.Incarnation
	if !leads || m.Cluster.Recovered == now || time.Since(since) < recoverAfter {
		return nil
	}
	return n.registry.ChangeCluster(ctx, func(c *registry.Cluster) {
		if c.Incarnation == now {
			c.Recovered = now
		}
	})
}

// registerHost registers a host again.
func (n *Node) registerHost(ctx context.Context, h registry.Host) error {
	n.cfg.Log("the registry was restored without host %s, and gets it again", h.Name)
	h.Member, h.Votes = false, false
	err := n.registry.AddHost(ctx, h)
	if errors.As(err, new(*registry.TakenError)) && h.Name != n.settings.Host || errors.As(err, new(*registry.BuriedError)) {
		return nil // the registry knows better
	}
	return err
}

// registerBlock registers a block again.
func (n *Node) registerBlock(ctx context.Context, b registry.Block) error {
	ok, err := n.registry.ClaimBlock(ctx, b)
	if err != nil {
		return err
	}
	if ok {
		n.cfg.Log("the registry was restored without block %s of network %s, and gets it again for host %s", b.Prefix, b.Network, b.Host)
		return nil
	}
	if b.Host != n.settings.Host {
		return nil // its host sees to it
	}
	owner, err := n.registry.Block(ctx, b)
	if err != nil || owner.Host == b.Host {
		return err
	}
	return &TwoOwnersError{b, owner.Host}
}

// TwoOwnersError means that a registry that was restored from a backup says that another host has this host's block.
// The other host releases it, unless it is dead.
type TwoOwnersError struct {
	Block registry.Block
	Other string
}

func (e *TwoOwnersError) Error() string {
	return fmt.Sprintf("block %s of network %s belongs to this host, and the registry, which was restored from a backup, has it for host %s; "+
		"if that host is dead: cleat-node remove %s", e.Block.Prefix, e.Block.Network, e.Other, e.Other)
}

// listedNow reports whether the mirror has had all records since the start.
func (n *Node) listedNow() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listed
}

// leads reports whether this host does what one host of the cluster has to do. It is called with mu held.
func (n *Node) leads() bool {
	if n.mirror.Cluster.External {
		return n.leadsExternal()
	}
	return n.member != nil && n.member.Leads()
}

// Telling other hosts that the registry was restored.

// restoredBy is what hosts tell each other of a registry that was restored from a backup.
type restoredBy struct {
	Incarnation string          `json:"incarnation"`
	Members     []registry.Host `json:"members"`
}

// tellEvery is the time between attempts to tell hosts that the registry was restored.
const tellEvery = 2 * time.Second

// tellRestored tells the hosts that are not alive in the registry that it was restored: they may use the former one.
func (n *Node) tellRestored(ctx context.Context) error {
	n.mu.Lock()
	if !n.leads() || n.mirror.Cluster.Incarnation == "" {
		n.mu.Unlock()
		return nil
	}
	r := hostRequest{Restored: &restoredBy{n.mirror.Cluster.Incarnation, n.mirror.voters()}}
	var others []registry.Host
	for name, h := range n.mirror.Hosts {
		if _, lives := n.mirror.alive[name]; !lives && name != n.settings.Host {
			others = append(others, h)
		}
	}
	n.mu.Unlock()
	n.askAll(ctx, others, r)
	return nil
}

// hostRestored notes that another host has restored the registry.
func (n *Node) hostRestored(host string, r restoredBy) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.Incarnation <= n.settings.Incarnation {
		return nil
	}
	if len(r.Members) == 0 || n.pending != nil && n.pending.Incarnation >= r.Incarnation {
		return nil
	}
	n.cfg.Log("host %s says that the registry was restored from a backup, as incarnation %s", host, r.Incarnation)
	n.pending = &r
	signal(n.govern)
	return nil
}

// followRestored goes over to a registry that another host has restored.
func (n *Node) followRestored() error {
	n.mu.Lock()
	r := n.pending
	n.mu.Unlock()
	if r == nil {
		return nil
	}
	n.endMember((*member.Member).Abort)
	if err := n.dir.putAside(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = nil
	n.settings.Incarnation = r.Incarnation
	err := n.dir.writeSettings(*n.settings)
	for name, h := range n.mirror.Hosts {
		h.Member, h.Votes = false, false
		n.mirror.Hosts[name] = h
	}
	for _, h := range r.Members {
		if old, known := n.mirror.Hosts[h.Name]; !known || old.Pin == h.Pin {
			n.mirror.Hosts[h.Name] = h
		}
	}
	n.changes++
	signal(n.apply)
	return err
}
