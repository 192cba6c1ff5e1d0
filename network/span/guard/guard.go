package guard

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"cleat/internal/nlsock"
	"cleat/netns"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Config is who may send what.
type Config struct {
	Name  string     // of the tables
	VNI   int        // VXLAN network identifier of the cluster
	Local netip.Addr // of this host, in packets between hosts
	Port  uint16     // TCP and UDP port of this host's node
	Hosts []Host     // the other hosts
	// Geneve means that this host or another one may have a device of package span for Geneve. Such a device takes
	// datagrams with any identifier, so the rules do too.
	Geneve bool
	// Devices are those that lead to containers, besides those that are known by how their names begin.
	Devices []string
}

// Host is another host.
type Host struct {
	Address netip.Addr
	Port    uint16 // TCP and UDP port of its node
}

// devices are the beginnings of the names of devices that lead to containers (package named).
var devices = []string{"clr", "cl-"}

var families = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// Names of sets and chains.
const (
	setHosts       = "hosts" // addresses of the other hosts
	setNodes       = "nodes" // addresses of all hosts with the ports of their nodes
	chainInput     = "input"
	chainForward   = "forward"
	chainDatagrams = "datagrams" // of hosts for each other's containers, to this one
	chainToNode    = "to-node"   // of this host
	chainToHosts   = "to-hosts"
	chainRawInput  = "raw-input"
	chainRawOutput = "raw-output"
)

// Tables are the tables of a namespace, and remember how Sync left them. The zero value remembers nothing. It is not safe
// for concurrent use.
type Tables struct {
	have       map[nftables.TableFamily]contents
	generation uint32 // of the namespace's rules that had them; 0 if it is not known
}

// Sync makes the tables as wanted. It reports whether it has changed something. It lists the kernel's only if the
// namespace's rules have changed since the last Sync.
func (t *Tables) Sync(ns *netns.NS, c Config) (changed bool, err error) {
	err = within(ns, func(n *nftables.Conn) error {
		before, err := generation()
		if err != nil {
			return err
		}
		if t.generation == 0 || t.generation != before {
			t.have = map[nftables.TableFamily]contents{}
		}
		t.generation = 0
		commits := uint32(0)
		for _, f := range families {
			w := c.table(f)
			if _, known := t.have[f]; !known {
				if t.have[f], err = read(n, w); err != nil {
					return err
				}
			}
			wanted := w.contents()
			if t.have[f].equal(wanted) {
				continue
			}
			changed = true
			if err := w.replace(n); err != nil {
				return err
			}
			t.have[f] = wanted
			commits++
		}
		if after, err := generation(); err == nil && after == before+commits { // nobody else has changed something
			t.generation = after
		}
		return nil
	})
	return changed, err
}

// Remove removes the tables with a name.
func Remove(ns *netns.NS, name string) error {
	return within(ns, func(n *nftables.Conn) error {
		for _, f := range families {
			t := &nftables.Table{Family: f, Name: name}
			n.AddTable(t) // so that there is one
			n.DelTable(t)
		}
		return flush(n)
	})
}

func within(ns *netns.NS, do func(*nftables.Conn) error) error {
	return ns.Do(func() error {
		n, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		return do(n)
	})
}

// generation returns that of the rules of the namespace in which it is called.
func generation() (uint32, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("open nftables: %w", err)
	}
	defer unix.Close(fd)
	s, err := nlsock.New(fd)
	if err != nil {
		return 0, fmt.Errorf("open nftables: %w", err)
	}
	return s.RulesGeneration()
}

func flush(n *nftables.Conn) error {
	if err := n.Flush(); err != nil {
		return fmt.Errorf("change the rules between hosts: %w", err)
	}
	return nil
}

// table is a wanted table.
type table struct {
	Config
	kernel *nftables.Table
}

func (c Config) table(f nftables.TableFamily) table {
	return table{c, &nftables.Table{Family: f, Name: c.Name}}
}

// has reports whether an address is of the table's family.
func (w table) has(a netip.Addr) bool {
	return a.IsValid() && a.Is4() == (w.kernel.Family == nftables.TableFamilyIPv4)
}

// contents are what two tables are compared by: the comments of rules by chain, and keys of sets.
type contents struct {
	rules map[string][]string
	sets  map[string][]string
}

func (c contents) equal(o contents) bool {
	return maps.EqualFunc(c.rules, o.rules, slices.Equal) && maps.EqualFunc(c.sets, o.sets, slices.Equal)
}

func (w table) contents() contents {
	c := contents{map[string][]string{}, map[string][]string{setHosts: w.hosts(), setNodes: w.nodes()}}
	for _, r := range w.rules() {
		c.rules[r.chain] = append(c.rules[r.chain], r.comment)
	}
	return c
}

// hosts returns the keys of setHosts, and nodes those of setNodes, each once and in order.
func (w table) hosts() (all []string) {
	for _, h := range w.Hosts {
		if w.has(h.Address) {
			all = append(all, string(h.Address.AsSlice()))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (w table) nodes() (all []string) {
	for _, h := range append(slices.Clone(w.Hosts), Host{w.Local, w.Port}) {
		if w.has(h.Address) {
			all = append(all, string(h.Address.AsSlice())+string([]byte{byte(h.Port >> 8), byte(h.Port), 0, 0}))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// read returns what the kernel has of a table.
func read(n *nftables.Conn, w table) (c contents, err error) {
	c = contents{map[string][]string{}, map[string][]string{}}
	chains, err := n.ListChainsOfTableFamily(w.kernel.Family)
	if err != nil {
		return c, fmt.Errorf("list chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != w.Name {
			continue
		}
		rules, err := n.GetRules(w.kernel, chain)
		if err != nil {
			return c, gone(err, "list rules of "+chain.Name)
		}
		for _, r := range rules {
			c.rules[chain.Name] = append(c.rules[chain.Name], comment(r))
		}
	}
	if len(c.rules) == 0 {
		return c, nil
	}
	for _, s := range w.kernelSets() {
		elements, err := n.GetSetElements(s)
		if err != nil {
			return c, gone(err, "list set "+s.Name)
		}
		keys := []string{}
		for _, e := range elements {
			keys = append(keys, string(e.Key))
		}
		slices.Sort(keys)
		c.sets[s.Name] = keys
	}
	return c, nil
}

// gone returns nil if err means that somebody has removed what was listed: then it differs from what is wanted.
func gone(err error, doing string) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// replace makes the table.
func (w table) replace(n *nftables.Conn) error {
	n.AddTable(w.kernel)
	n.DelTable(w.kernel)
	n.AddTable(w.kernel)
	keys := w.contents().sets
	for _, s := range w.kernelSets() {
		var elements []nftables.SetElement
		for _, k := range keys[s.Name] {
			elements = append(elements, nftables.SetElement{Key: []byte(k)})
		}
		if err := n.AddSet(s, elements); err != nil {
			return fmt.Errorf("make set %s: %w", s.Name, err)
		}
	}
	chains := map[string]*nftables.Chain{}
	for _, name := range []string{chainDatagrams, chainToNode, chainToHosts} {
		chains[name] = n.AddChain(&nftables.Chain{Table: w.kernel, Name: name})
	}
	for name, h := range hooks {
		chains[name] = n.AddChain(&nftables.Chain{Table: w.kernel, Name: name, Type: nftables.ChainTypeFilter, Hooknum: h.at, Priority: &h.priority})
	}
	for _, r := range w.rules() {
		n.AddRule(&nftables.Rule{Table: w.kernel, Chain: chains[r.chain], Exprs: r.exprs, UserData: userData(r.comment)})
	}
	return flush(n)
}
