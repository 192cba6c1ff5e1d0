package overlay

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"cleat/overlay/registry"
)

// mirror is what the registry has. It is not safe for concurrent use.
type mirror struct {
	Cluster  registry.Cluster                     `json:"cluster"`
	Hosts    map[string]registry.Host             `json:"hosts"`
	Networks map[string]registry.Network          `json:"networks"`
	Blocks   map[string]map[string]registry.Block `json:"blocks"`            // by network and prefix
	Removed  map[string]registry.Tombstone        `json:"removed,omitempty"` // by pin
	Lost     map[string]bool                      `json:"lost,omitempty"`    // keys of hosts, networks, blocks and tombstones that a restored registry lacks
	Surplus  map[string]registry.Block            `json:"surplus,omitempty"` // blocks that a restored registry has for this host, which gave them away
	Renew    bool                                 `json:"renew,omitempty"`   // the registry was restored, and its incarnation does not say so
	At       registry.Position                    `json:"at,omitzero"`       // of what the registry had
	alive    map[string]registry.Alive            // by host
	ends     map[endpointsOf]held
	listing  map[endpointsOf]held // the pages of all endpoints so far; nil: none
	self     string               // this host
	relapsed bool                 // the registry's cluster does not encrypt any more, as in an older copy
}

// endpointsOf names the endpoints of a host on a network.
type endpointsOf struct{ network, host string }

func newMirror() *mirror {
	return &mirror{Hosts: map[string]registry.Host{}, Networks: map[string]registry.Network{}, Blocks: map[string]map[string]registry.Block{},
		Removed: map[string]registry.Tombstone{}, Lost: map[string]bool{}, alive: map[string]registry.Alive{},
		ends: map[endpointsOf]held{}, Surplus: map[string]registry.Block{}}
}

// changed says what an update has changed.
type changed struct {
	topology  bool                 // hosts, networks or blocks
	keys      []string             // hosts that are gone, or have another key
	left      []netip.Addr         // addresses that hosts had, and have no more
	endpoints map[endpointsOf]bool // the endpoints of these
	alive     []string             // hosts that came or went
}

// isRestored reports whether an update lists a registry that may lack what this host knows: it was restored from a
// backup, and has not got it again yet.
func (m *mirror) isRestored(u registry.Update) bool {
	c := clusterOf(u)
	switch {
	case !u.All:
		return false
	case c == nil || m.Cluster.ID == "" || c.Incarnation == m.Cluster.Incarnation:
		return u.Restored
	case c.Incarnation > m.Cluster.Incarnation:
		return c.Recovered != c.Incarnation
	}
	return true
}

// clusterOf returns the cluster of an update; nil if it does not have it, or it can't be read.
func clusterOf(u registry.Update) *registry.Cluster {
	for _, c := range u.Changes {
		if c.Cluster != nil {
			return c.Cluster
		}
	}
	return nil
}

// update applies an update. After one that has all records, what they lack is gone. A registry that was restored
// may lack hosts, networks, and blocks that hosts use: these stay until they are registered again (restored.go).
func (m *mirror) update(u registry.Update) changed {
	c := changed{endpoints: map[endpointsOf]bool{}}
	if u.At.Revision != 0 {
		m.At = u.At
	}
	if u.Endpoints != nil {
		m.list(u, &c)
		return c
	}
	old := m
	if u.All {
		old = &mirror{}
		*old = *m
		*m = *newMirror()
		m.Cluster, m.self, m.ends, m.relapsed, m.At, m.Renew = old.Cluster, old.self, old.ends, old.relapsed, old.At, old.Renew
		if old.isRestored(u) {
			now := clusterOf(u)
			m.Renew = old.Cluster.External && (now == nil || now.Incarnation <= old.Cluster.Incarnation)
			m.Hosts, m.Blocks, m.Networks, m.Removed = old.Hosts, old.Blocks, old.Networks, old.Removed
			m.Lost = old.keys()
			u.Changes = m.withoutForeign(u.Changes)
		} else {
			m.keepLost(old)
			u.Changes = m.withoutLost(u.Changes, old.Surplus)
		}
	}
	for _, one := range u.Changes {
		m.change(one, &c)
	}
	for _, one := range u.Unread {
		m.keep(one, old)
	}
	if u.All {
		c.topology = true
		m.dropLost()
		for name, h := range old.Hosts {
			now, ok := m.Hosts[name]
			if !ok || now.Pin != h.Pin {
				c.keys = append(c.keys, name)
			}
			if ok && now.Address != h.Address {
				c.left = append(c.left, h.Address)
			}
		}
		for h := range old.alive {
			if _, lives := m.alive[h]; !lives {
				c.alive = append(c.alive, h)
			}
		}
	}
	return c
}

func (m *mirror) change(one registry.Change, c *changed) {
	switch {
	case one.Cluster != nil:
		delete(m.Lost, lostCluster)
		m.changeCluster(*one.Cluster, one.Removed)
		c.topology = true
	case one.Tombstone != nil:
		delete(m.Lost, tombstoneKey(one.Tombstone.Pin))
		set(m.Removed, one.Tombstone.Pin, *one.Tombstone, one.Removed)
		if h, ok := m.Hosts[one.Tombstone.Host]; ok && h.Pin == one.Tombstone.Pin {
			c.keys = append(c.keys, h.Name)
		}
		m.bury(*one.Tombstone)
		c.topology = true
	case one.Host != nil:
		delete(m.Lost, hostKey(one.Host.Name))
		if old, ok := m.Hosts[one.Host.Name]; ok {
			if one.Removed || old.Pin != one.Host.Pin {
				c.keys = append(c.keys, one.Host.Name)
			}
			if !one.Removed && old.Address != one.Host.Address {
				c.left = append(c.left, old.Address)
			}
		}
		set(m.Hosts, one.Host.Name, *one.Host, one.Removed)
		c.topology = true
	case one.Alive != nil:
		set(m.alive, one.Alive.Host, one.Alive.Alive, one.Removed)
		c.alive = append(c.alive, one.Alive.Host)
	case one.Network != nil:
		delete(m.Lost, one.Network.Name)
		set(m.Networks, one.Network.Name, *one.Network, one.Removed)
		c.topology = true
	case one.Block != nil:
		if m.Blocks[one.Block.Network] == nil {
			m.Blocks[one.Block.Network] = map[string]registry.Block{}
		}
		delete(m.Lost, blockKey(*one.Block))
		delete(m.Surplus, blockKey(*one.Block))
		set(m.Blocks[one.Block.Network], one.Block.Prefix.String(), *one.Block, one.Removed)
		c.topology = true
	case one.Endpoint != nil:
		of := endpointsOf{one.Endpoint.Network, one.Endpoint.Host}
		store(m.ends, of, *one.Endpoint, one.Removed)
		c.endpoints[of] = true
	}
}

// changeCluster replaces what all hosts have in common. What is encrypted once stays so, whatever the registry says.
func (m *mirror) changeCluster(now registry.Cluster, removed bool) {
	if removed || now.ID != m.Cluster.ID {
		return
	}
	m.relapsed = m.Cluster.Encryption == registry.EncryptionOn && now.Encryption != registry.EncryptionOn
	if m.relapsed {
		now.Encryption = m.Cluster.Encryption
	}
	m.Renew = m.Renew && now.Incarnation <= m.Cluster.Incarnation
	m.Cluster = now
}

// list applies a page of all endpoints. After the last one, those that were on none are gone.
func (m *mirror) list(u registry.Update, c *changed) {
	if u.Endpoints.First || m.listing == nil {
		m.listing = map[endpointsOf]held{}
	}
	// Pages are in the order of network, host and id. So most endpoints come after last, which has the greatest id of its
	// host and network.
	var last *registry.Endpoint
	for _, one := range u.Changes {
		e := one.Endpoint
		if e == nil {
			continue
		}
		of := endpointsOf{e.Network, e.Host}
		if last == nil || last.Network != e.Network || last.Host != e.Host || last.ID >= e.ID {
			store(m.listing, of, *e, false)
			if last = e; !m.listing[of].plain.endsWith(e.ID) {
				last = nil
			}
			continue
		}
		push(m.listing, of, *e)
		last = e
	}
	for _, one := range u.Unread { // what it was before
		of := endpointsOf{one.Endpoint.Network, one.Endpoint.Host}
		if e, ok := m.ends[of].open().get(of, one.Endpoint.ID); ok {
			store(m.listing, of, e, false)
		}
	}
	if !u.Endpoints.Last {
		return
	}
	old := m.ends
	m.ends, m.listing = m.listing, nil
	for of, h := range m.ends {
		if bytes.Equal(old[of].open(), h.plain) {
			m.ends[of] = old[of]
			continue
		}
		h.plain = h.plain.clip()
		m.ends[of] = h
		c.endpoints[of] = true
	}
	for of := range old {
		if _, ok := m.ends[of]; !ok {
			c.endpoints[of] = true
		}
	}
}

// blocksOf returns the blocks of a host.
func (m *mirror) blocksOf(host string) (all []registry.Block) {
	for _, blocks := range m.Blocks {
		for _, b := range blocks {
			if b.Host == host {
				all = append(all, b)
			}
		}
	}
	return all
}

// keep takes over the older record of one that can't be read.
func (m *mirror) keep(one registry.Change, old *mirror) {
	c := changed{endpoints: map[endpointsOf]bool{}}
	switch {
	case one.Host != nil:
		if h, ok := old.Hosts[one.Host.Name]; ok {
			m.change(registry.Change{Host: &h}, &c)
		}
	case one.Network != nil:
		if n, ok := old.Networks[one.Network.Name]; ok {
			m.change(registry.Change{Network: &n}, &c)
		}
	case one.Block != nil:
		if b, ok := old.Blocks[one.Block.Network][one.Block.Prefix.String()]; ok {
			m.change(registry.Change{Block: &b}, &c)
		}
	case one.Alive != nil:
		m.change(registry.Change{Alive: one.Alive}, &c) // the host lives, whatever the record says
	}
}

func set[K comparable, V any](all map[K]V, key K, v V, removed bool) {
	if removed {
		delete(all, key)
		return
	}
	all[key] = v
}

// state returns what a host's dataplane is to be.
func (m *mirror) state(self string) State {
	s := State{VNI: m.Cluster.VNI, Default: m.Cluster.Dataplane, Encrypted: m.Cluster.Encryption == registry.EncryptionOn, Pending: m.Cluster.Encryption == registry.EncryptionPending, Self: m.Hosts[self]}
	for _, name := range slices.Sorted(maps.Keys(m.Hosts)) {
		if name != self {
			s.Hosts = append(s.Hosts, m.Hosts[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Networks)) {
		n := NetworkState{Network: m.Networks[name], Remote: map[string][]netip.Prefix{}}
		for _, b := range m.Blocks[name] {
			if b.Host == self {
				n.Own = append(n.Own, b.Prefix)
			} else if _, known := m.Hosts[b.Host]; known {
				n.Remote[b.Host] = append(n.Remote[b.Host], b.Prefix)
			}
		}
		slices.SortFunc(n.Own, comparePrefixes)
		for _, b := range m.Blocks[name] {
			if b.Host != self && b.Prefix.IsSingleIP() && m.encloses(name, b.Prefix.Addr(), self) {
				n.Lent = append(n.Lent, b.Prefix.Addr())
			}
		}
		for _, its := range n.Remote {
			slices.SortFunc(its, comparePrefixes)
		}
		s.Networks = append(s.Networks, n)
	}
	return s
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// endpoints returns the endpoints of a host on a network, by id.
func (m *mirror) endpoints(of endpointsOf) []registry.Endpoint {
	return m.ends[of].open().all(of)
}

// copy returns a copy that changes of the mirror don't affect, without endpoints and who is alive.
func (m *mirror) copy() *mirror {
	c := newMirror()
	c.Cluster, c.relapsed, c.At, c.Renew = m.Cluster, m.relapsed, m.At, m.Renew
	maps.Copy(c.Hosts, m.Hosts)
	maps.Copy(c.Networks, m.Networks)
	for n, blocks := range m.Blocks {
		c.Blocks[n] = maps.Clone(blocks)
	}
	maps.Copy(c.Lost, m.Lost)
	maps.Copy(c.Removed, m.Removed)
	maps.Copy(c.Surplus, m.Surplus)
	c.self = m.self
	return c
}

// members returns the hosts that run a member of the registry, by name, and voters those whose members vote.
func (m *mirror) members() []registry.Host {
	return m.those(func(h registry.Host) bool { return h.Member })
}
func (m *mirror) voters() []registry.Host {
	return m.those(func(h registry.Host) bool { return h.Votes })
}

func (m *mirror) those(are func(registry.Host) bool) []registry.Host {
	var all []registry.Host
	for _, h := range m.Hosts {
		if are(h) {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b registry.Host) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
