package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cleat/netns"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// space is a network namespace with everything in it that a packet can meet,
// read once. Only routes are asked for later.
type space struct {
	ns    *netns.NS
	id    uint64
	label string

	h       *netlink.Handle
	links   map[int]netlink.Link // by index
	ifaces  map[int]Interface
	addrs   map[netip.Addr]int // which link has the address
	onLink  map[int][]netip.Prefix
	neigh   []netlink.Neigh // ARP and ND
	fdb     []netlink.Neigh // bridge and VXLAN forwarding entries
	drops   map[int]uint32  // by the queueing discipline
	sysctls map[string]string
	rules   ruleset
	notes   []string // what could not be read
}

// traceSysctls are the settings that decide what happens to a packet.
var traceSysctls = []string{
	"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.ipv4.conf.all.rp_filter",
	"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables",
}

// newSpace reads a namespace. It keeps ns, which the caller closes after close.
func newSpace(ns *netns.NS) (*space, error) {
	id, err := ns.ID()
	if err != nil {
		return nil, err
	}
	s := &space{ns: ns, id: id, label: ns.String(), links: map[int]netlink.Link{}, ifaces: map[int]Interface{},
		addrs: map[netip.Addr]int{}, onLink: map[int][]netip.Prefix{}, drops: map[int]uint32{}, sysctls: map[string]string{}}
	if err := ns.Do(s.read); err != nil {
		s.close()
		return nil, fmt.Errorf("read network namespace %s: %w", ns, err)
	}
	return s, nil
}

func (s *space) close() {
	if s.h != nil {
		s.h.Close()
	}
}

// read runs inside the namespace.
func (s *space) read() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	s.h = h
	links, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list links: %w", err)
	}
	f := newFiles(os.DirFS("/"))
	tool, err := ethtool.NewEthtool()
	if err != nil {
		tool = nil
	} else {
		defer tool.Close()
	}
	for _, i := range describe(f, h, tool, links) {
		s.ifaces[i.Index] = i
	}
	for _, l := range links {
		s.links[l.Attrs().Index] = l
	}
	if err := s.readAddresses(); err != nil {
		return err
	}
	s.readTables()
	for _, name := range traceSysctls {
		s.sysctls[name] = f.read("proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	}
	s.rules, err = readRuleset()
	switch {
	case mayNotList(err):
		s.notes = append(s.notes, fmt.Sprintf("the firewall rules of %s may be read by root only", s.label))
	case err != nil:
		s.notes = append(s.notes, err.Error())
	}
	for _, name := range []string{"ip_tables_names", "ip6_tables_names"} {
		if tables := strings.Fields(f.read("proc/thread-self/net/" + name)); len(tables) > 0 {
			s.notes = append(s.notes, fmt.Sprintf("%s has iptables-legacy tables (%s), whose rules are not shown: `iptables-legacy-save` prints them", s.label, strings.Join(tables, ", ")))
		}
	}
	return nil
}

func (s *space) readAddresses() error {
	addrs, err := s.h.AddrList(nil, unix.AF_UNSPEC)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ones, _ := a.Mask.Size()
		ip = ip.Unmap()
		if !ip.IsLinkLocalUnicast() {
			s.addrs[ip] = a.LinkIndex
		}
		s.onLink[a.LinkIndex] = append(s.onLink[a.LinkIndex], netip.PrefixFrom(ip, ones))
	}
	return nil
}

// readTables reads neighbours, forwarding entries and queue drops; a kernel
// without one of them has none.
func (s *space) readTables() {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		n, _ := s.h.NeighList(0, family)
		s.neigh = append(s.neigh, n...)
	}
	s.fdb, _ = s.h.NeighListExecute(netlink.Ndmsg{Family: unix.AF_BRIDGE})
	qdiscs, _ := s.h.QdiscList(nil)
	for _, q := range qdiscs {
		a := q.Attrs()
		if a.Parent == netlink.HANDLE_ROOT && a.Statistics != nil && a.Statistics.Queue != nil {
			s.drops[a.LinkIndex] = a.Statistics.Queue.Drops
		}
	}
}

// forwards tells whether the namespace routes packets of dst's family.
func (s *space) forwards(dst netip.Addr) bool {
	if dst.Is4() {
		return s.sysctls["net.ipv4.ip_forward"] == "1"
	}
	return s.sysctls["net.ipv6.conf.all.forwarding"] == "1"
}

// bridgeNetfilter tells whether bridged packets of dst's family pass the rules
// for routed ones.
func (s *space) bridgeNetfilter(dst netip.Addr) bool {
	if dst.Is4() {
		return s.sysctls["net.bridge.bridge-nf-call-iptables"] == "1"
	}
	return s.sysctls["net.bridge.bridge-nf-call-ip6tables"] == "1"
}

// route asks the kernel for the way to dst. in is the link a packet came by, 0
// for our own packets.
func (s *space) route(dst, src netip.Addr, in int) (netlink.Route, error) {
	o := &netlink.RouteGetOptions{}
	if in != 0 {
		o.IifIndex = in
	}
	if src.IsValid() {
		o.SrcAddr = src.AsSlice()
	}
	routes, err := s.h.RouteGetWithOptions(dst.AsSlice(), o)
	if err != nil {
		return netlink.Route{}, err
	}
	if len(routes) == 0 {
		return netlink.Route{}, unix.EHOSTUNREACH
	}
	return routes[0], nil
}

// neighbour is the MAC address that the kernel knows for an address on a link.
func (s *space) neighbour(link int, ip netip.Addr) net.HardwareAddr {
	for _, n := range s.neigh {
		if a, _ := netip.AddrFromSlice(n.IP); n.LinkIndex == link && a.Unmap() == ip && len(n.HardwareAddr) == 6 {
			return n.HardwareAddr
		}
	}
	return nil
}

// ports lists the links whose master is the bridge, in order of index.
func (s *space) ports(bridge int) []int {
	var out []int
	for index, l := range s.links {
		if l.Attrs().MasterIndex == bridge {
			out = append(out, index)
		}
	}
	slices.Sort(out)
	return out
}

// forwardingPort is the port behind which the bridge has learned, or was told,
// a MAC address; 0: none. local says that the address is one of the bridge's
// own: then the frame goes up to the IP stack.
func (s *space) forwardingPort(bridge int, mac net.HardwareAddr) (port int, local bool) {
	for _, n := range s.fdb {
		switch {
		case n.MasterIndex != bridge || n.HardwareAddr.String() != mac.String():
		case n.State&netlink.NUD_PERMANENT != 0: // fdb_to_nud, net/bridge/br_fdb.c
			local = true
		default:
			port = n.LinkIndex
		}
	}
	if l := s.links[bridge]; l != nil && l.Attrs().HardwareAddr.String() == mac.String() {
		local = true
	}
	return port, local
}

// known opens every network namespace that can be found: those of a, b and the
// caller, of every visible process and the descriptors it holds, and those with
// a name. Namespaces that may not be opened are left out.
func known(a, b *netns.NS) (spaces []*space, done func(), err error) {
	var opened []*netns.NS
	seen := map[uint64]bool{}
	done = func() {
		for _, s := range spaces {
			s.close()
		}
		for _, ns := range opened {
			ns.Close()
		}
	}
	add := func(ns *netns.NS) error {
		id, err := ns.ID()
		if err != nil || seen[id] {
			return err
		}
		seen[id] = true
		s, err := newSpace(ns)
		if err != nil {
			return err
		}
		spaces = append(spaces, s)
		return nil
	}
	for _, ns := range []*netns.NS{a, b} {
		if err := add(ns); err != nil {
			done()
			return nil, nil, err
		}
	}
	for _, path := range namespacePaths(seen) {
		ns, err := netns.Find(path)
		if err != nil {
			continue
		}
		opened = append(opened, ns)
		if add(ns) == nil && len(spaces) > 0 {
			spaces[len(spaces)-1].label = spaceLabel(path)
		}
	}
	return spaces, done, nil
}

// namespacePaths finds files that stand for namespaces, one for each.
func namespacePaths(seen map[uint64]bool) []string {
	found := map[uint64]bool{}
	var out []string
	add := func(path string) {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || seen[st.Ino] || found[st.Ino] {
			return
		}
		found[st.Ino] = true
		out = append(out, path)
	}
	for _, pattern := range []string{"/run/netns/*", "/run/docker/netns/*"} {
		paths, _ := filepath.Glob(pattern)
		for _, p := range paths {
			add(p)
		}
	}
	add("/proc/self/ns/net")
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range pids {
		add(p + "/ns/net")
	}
	for _, p := range pids { // namespaces without a process or a name
		fds, _ := os.ReadDir(p + "/fd")
		for _, fd := range fds {
			path := p + "/fd/" + fd.Name()
			if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, "net:[") {
				add(path)
			}
		}
	}
	return out
}

// spaceLabel shortens a path for people.
func spaceLabel(path string) string {
	switch parts := strings.Split(path, "/"); {
	case path == "/proc/self/ns/net":
		return "here"
	case strings.HasSuffix(path, "/ns/net"):
		return "pid " + parts[2]
	case strings.HasPrefix(path, "/proc/"):
		return "held by pid " + parts[2]
	default:
		return filepath.Base(path)
	}
}
