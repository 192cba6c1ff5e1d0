package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"cleat/netns"
	"cleat/network/survey"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Observation is what was read of all network namespaces of this machine. It holds a netlink
// and an ethtool socket in each of them until Close. It is not safe for concurrent use.
type Observation struct {
	namespaces []*namespace
}

// namespace is everything in a network namespace that a packet can meet.
type namespace struct {
	*survey.Namespace
	raw        map[int]netlink.Link // by index: the attributes that a survey.Link leaves out
	addresses  map[netip.Addr]int   // index of the link that has the address; without link-local ones
	neighbours []netlink.Neigh      // ARP and ND
	fdb        []netlink.Neigh      // forwarding entries of bridges and VXLAN devices
	sysctls    map[string]string
	rules      ruleset
	unread     []string // what could not be read, for people

	// route returns the kernel's route to dst. in is the index of the link that the packet came
	// by, 0 for the namespace's own packets.
	route func(dst, src netip.Addr, in int) (netlink.Route, error)

	handle *netlink.Handle  // nil in tests, and where it could not be opened
	driver *ethtool.Ethtool // nil, too
}

// Observe reads all network namespaces that can be found and entered, and changes nothing.
// names are those of containers, by the inode number of their network namespace.
func Observe(ctx context.Context, names map[uint64]survey.Name) (*Observation, error) {
	var mu sync.Mutex
	visited := map[uint64]*namespace{}
	s, err := survey.Take(ctx, survey.Config{Names: names, SearchDescriptors: true, Visit: func(id uint64, links []netlink.Link) {
		n := read(links)
		mu.Lock()
		defer mu.Unlock()
		visited[id] = n
	}})
	o := &Observation{}
	if err == nil {
		for i := range s.Namespaces {
			found := &s.Namespaces[i]
			if n := visited[found.ID]; n != nil && found.UnreadReason == "" {
				n.surveyed(found)
				o.namespaces = append(o.namespaces, n)
				delete(visited, found.ID)
			}
		}
	}
	for _, n := range visited {
		n.close()
	}
	return o, err
}

// Close closes the sockets in the namespaces.
func (o *Observation) Close() {
	for _, n := range o.namespaces {
		n.close()
	}
}

func (n *namespace) close() {
	if n.handle != nil {
		n.handle.Close()
	}
	if n.driver != nil {
		n.driver.Close()
	}
}

// find returns the namespace that ns is open on, and labels it as ns is.
func (o *Observation) find(ns *netns.NS) (*namespace, error) {
	id, err := ns.ID()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(o.namespaces, func(n *namespace) bool { return n.ID == id })
	if i < 0 {
		// Where it may not be entered, trying that returns the typed error, such as EPERM.
		return nil, fmt.Errorf("read network namespace %s: %w", ns, ns.Do(func() error { return errors.New("it was not found, or could not be read") }))
	}
	o.namespaces[i].Label = ns.String()
	return o.namespaces[i], nil
}

// sysctls are the settings that decide what happens to a packet, besides rp_filter of each link.
var sysctls = []string{
	"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.ipv4.conf.all.rp_filter",
	"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables",
}

// read reads what a survey leaves out. It runs on a thread inside the namespace. A table that
// this kernel does not have is left empty.
func read(links []netlink.Link) *namespace {
	n := &namespace{raw: map[int]netlink.Link{}, sysctls: map[string]string{}}
	for _, l := range links {
		n.raw[l.Attrs().Index] = l
		n.sysctl("net/ipv4/conf/"+l.Attrs().Name+"/rp_filter", rpFilter(l.Attrs().Name))
	}
	for _, name := range sysctls {
		n.sysctl(strings.ReplaceAll(name, ".", "/"), name)
	}
	var err error
	if n.driver, err = ethtool.NewEthtool(); err != nil {
		n.driver = nil
	}
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		n.handle = nil
		n.route = func(netip.Addr, netip.Addr, int) (netlink.Route, error) { return netlink.Route{}, err }
		return n
	}
	n.route = n.kernelRoute
	n.neighbours, _ = n.handle.NeighList(0, unix.AF_INET)
	ip6, _ := n.handle.NeighList(0, unix.AF_INET6)
	n.neighbours = append(n.neighbours, ip6...)
	n.fdb, _ = n.handle.NeighListExecute(netlink.Ndmsg{Family: unix.AF_BRIDGE})
	n.readRules()
	return n
}

// rpFilter is the dotted name of a link's reverse path filter setting.
func rpFilter(link string) string { return "net.ipv4.conf." + link + ".rp_filter" }

func (n *namespace) sysctl(path, name string) {
	if value, err := os.ReadFile("/proc/sys/" + path); err == nil {
		n.sysctls[name] = strings.TrimSpace(string(value))
	}
}

// readRules lists the rules of nftables, and notes tables of the old iptables, whose rules
// nftables can't list. The notes name the namespace when it has its label: see surveyed.
func (n *namespace) readRules() {
	var err error
	n.rules, err = readRuleset()
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		n.unread = append(n.unread, "only root may read the firewall rules")
	case err != nil:
		n.unread = append(n.unread, err.Error())
	}
	for _, name := range []string{"ip_tables_names", "ip6_tables_names"} {
		text, _ := os.ReadFile("/proc/thread-self/net/" + name)
		if tables := strings.Fields(string(text)); len(tables) > 0 {
			n.unread = append(n.unread, fmt.Sprintf("rules of the iptables-legacy tables (%s) are not shown: `iptables-legacy-save` prints them", strings.Join(tables, ", ")))
		}
	}
}

// surveyed adds what the survey says of the namespace.
func (n *namespace) surveyed(s *survey.Namespace) {
	n.Namespace, n.addresses = s, map[netip.Addr]int{}
	for _, l := range s.Links {
		for _, a := range l.Addresses {
			if !a.Addr().IsLinkLocalUnicast() {
				n.addresses[a.Addr()] = l.Index
			}
		}
	}
}

func (n *namespace) kernelRoute(dst, src netip.Addr, in int) (netlink.Route, error) {
	routes, err := n.handle.RouteGetWithOptions(dst.AsSlice(), &netlink.RouteGetOptions{IifIndex: in, SrcAddr: src.AsSlice()})
	if err != nil {
		return netlink.Route{}, err
	}
	if len(routes) == 0 {
		return netlink.Route{}, unix.EHOSTUNREACH
	}
	return routes[0], nil
}

// on reports whether a setting is 1, of the two the one for dst's IP version.
func (n *namespace) on(dst netip.Addr, ipv4, ipv6 string) bool {
	if dst.Is4() {
		return n.sysctls[ipv4] == "1"
	}
	return n.sysctls[ipv6] == "1"
}

// bridgeNetfilter reports whether bridged packets to dst pass the rules for routed ones.
func (n *namespace) bridgeNetfilter(dst netip.Addr) bool {
	return n.on(dst, "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables")
}

// neighbour returns the MAC address that the kernel knows for an address on a link, or nil.
func (n *namespace) neighbour(link int, ip netip.Addr) net.HardwareAddr {
	for _, e := range n.neighbours {
		if a, _ := netip.AddrFromSlice(e.IP); e.LinkIndex == link && a.Unmap() == ip && len(e.HardwareAddr) == 6 {
			return e.HardwareAddr
		}
	}
	return nil
}

// offloads are the switches that people know (`ethtool -K DEV tso on`), and the kernel
// features behind each (net/ethtool/common.c, netdev_features_strings).
var offloads = []struct {
	name     string
	features []string
}{
	{"tx", []string{"tx-checksum-ipv4", "tx-checksum-ipv6", "tx-checksum-ip-generic"}},
	{"rx", []string{"rx-checksum"}},
	{"sg", []string{"tx-scatter-gather"}},
	{"tso", []string{"tx-tcp-segmentation", "tx-tcp6-segmentation"}},
	{"gso", []string{"tx-generic-segmentation"}},
	{"gro", []string{"rx-gro"}},
}

// unknownSpeed is SPEED_UNKNOWN (include/uapi/linux/ethtool.h).
const unknownSpeed = 1<<32 - 1

// describe asks the drivers of the hops' links for speeds and offloads.
func (o *Observation) describe(hops []Hop) {
	for i := range hops {
		h := &hops[i]
		for _, n := range o.namespaces {
			if n.ID != h.id.namespace || n.driver == nil {
				continue
			}
			if mbit, err := n.driver.CmdGet(&ethtool.EthtoolCmd{}, h.Link); err == nil && mbit != unknownSpeed {
				h.SpeedMbit = int(mbit)
			}
			if features, err := n.driver.FeaturesWithState(h.Link); err == nil {
				h.Offloads = offloadText(features)
			}
		}
	}
}

// offloadText lists the offloads that are on, and behind "off:" those that the device has but
// that are off.
func offloadText(features map[string]ethtool.FeatureState) string {
	var on, off []string
	for _, o := range offloads {
		has, active := false, false
		for _, name := range o.features {
			has, active = has || features[name].Available, active || features[name].Active
		}
		switch {
		case active:
			on = append(on, o.name)
		case has:
			off = append(off, o.name)
		}
	}
	if len(off) > 0 {
		on = append(append(on, "off:"), off...)
	}
	return strings.Join(on, " ")
}
