package overlay

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"cleat/overlay/registry"
)

// mirror is what the registry has. It is not safe for concurrent use.
type mirror struct {
	Cluster  registry.Cluster                             `json:"cluster"`
	Hosts    map[string]registry.Host                     `json:"hosts"`
	Networks map[string]registry.Network                  `json:"networks"`
	Blocks   map[string]map[string]registry.Block         `json:"blocks"` // by network and prefix
	alive    map[string]registry.Alive                    // by host
	ends     map[endpointsOf]map[string]registry.Endpoint // by id
	lost     map[string]bool                              // keys of networks and blocks that a restored registry lacks
	relapsed bool                                         // the registry's cluster does not encrypt any more, as in an older copy
}

// endpointsOf names the endpoints of a host on a network.
type endpointsOf struct{ network, host string }

func newMirror() *mirror {
	return &mirror{Hosts: map[string]registry.Host{}, Networks: map[string]registry.Network{}, Blocks: map[string]map[string]registry.Block{},
		alive: map[string]registry.Alive{}, ends: map[endpointsOf]map[string]registry.Endpoint{}, lost: map[string]bool{}}
}

// changed says what an update has changed.
type changed struct {
	topology  bool                 // hosts, networks or blocks
	endpoints map[endpointsOf]bool // the endpoints of these
	alive     []string             // hosts that came or went
}

// update applies an update. After one that has all records, what they lack is gone. A registry that was restored
// may lack blocks that hosts use: these stay, and their owners register them again.
func (m *mirror) update(u registry.Update) changed {
	c := changed{endpoints: map[endpointsOf]bool{}}
	old := m
	if u.All {
		old = &mirror{}
		*old = *m
		*m = *newMirror()
		m.Cluster, m.relapsed = old.Cluster, old.relapsed
		if u.Restored {
			m.Blocks, m.Networks = old.Blocks, old.Networks
			m.lost = old.keys()
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
		for of := range old.ends {
			c.endpoints[of] = true
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
		m.changeCluster(*one.Cluster, one.Removed)
		c.topology = true
	case one.Host != nil:
		set(m.Hosts, one.Host.Name, *one.Host, one.Removed)
		c.topology = true
	case one.Alive != nil:
		set(m.alive, one.Alive.Host, one.Alive.Alive, one.Removed)
		c.alive = append(c.alive, one.Alive.Host)
	case one.Network != nil:
		delete(m.lost, one.Network.Name)
		set(m.Networks, one.Network.Name, *one.Network, one.Removed)
		c.topology = true
	case one.Block != nil:
		if m.Blocks[one.Block.Network] == nil {
			m.Blocks[one.Block.Network] = map[string]registry.Block{}
		}
		delete(m.lost, blockKey(*one.Block))
		set(m.Blocks[one.Block.Network], one.Block.Prefix.String(), *one.Block, one.Removed)
		c.topology = true
	case one.Endpoint != nil:
		of := endpointsOf{one.Endpoint.Network, one.Endpoint.Host}
		if m.ends[of] == nil {
			m.ends[of] = map[string]registry.Endpoint{}
		}
		set(m.ends[of], one.Endpoint.ID, *one.Endpoint, one.Removed)
		if len(m.ends[of]) == 0 {
			delete(m.ends, of)
		}
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
	m.Cluster = now
}

// blockKey names a block in lost. Names of networks have no slash.
func blockKey(b registry.Block) string { return b.Network + "/" + b.Prefix.String() }

// keys returns the keys of all networks and blocks.
func (m *mirror) keys() map[string]bool {
	all := map[string]bool{}
	for name := range m.Networks {
		all[name] = true
	}
	for _, blocks := range m.Blocks {
		for _, b := range blocks {
			all[blockKey(b)] = true
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
	case one.Endpoint != nil:
		if e, ok := old.ends[endpointsOf{one.Endpoint.Network, one.Endpoint.Host}][one.Endpoint.ID]; ok {
			m.change(registry.Change{Endpoint: &e}, &c)
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
	var all []registry.Endpoint
	for _, id := range slices.Sorted(maps.Keys(m.ends[of])) {
		all = append(all, m.ends[of][id])
	}
	return all
}

// copy returns a copy that changes of the mirror don't affect, without endpoints and who is alive.
func (m *mirror) copy() *mirror {
	c := newMirror()
	c.Cluster, c.relapsed = m.Cluster, m.relapsed
	maps.Copy(c.Hosts, m.Hosts)
	maps.Copy(c.Networks, m.Networks)
	for n, blocks := range m.Blocks {
		c.Blocks[n] = maps.Clone(blocks)
	}
	maps.Copy(c.lost, m.lost)
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
	for _, name := range slices.Sorted(maps.Keys(m.Hosts)) {
		if h := m.Hosts[name]; are(h) {
			all = append(all, h)
		}
	}
	return all
}
