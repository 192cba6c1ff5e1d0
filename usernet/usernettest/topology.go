package usernettest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Topology is the network around one data path.
type Topology struct {
	Outside, Host, Container *lab.Node
	Netns                    string // path of the container's network namespace
	Dir                      string // for temporary files
}

// uplink is the name of the host's link to the outside, and of the outside's link to the
// host.
const uplink = "eth0"

// HostAddr returns the host's address on its uplink.
func HostAddr(f Family) netip.Addr { return byFamily(f, "192.0.2.1", "2001:db8:1::1") }

// OutsideAddr returns the outside's address on the host's uplink.
func OutsideAddr(f Family) netip.Addr { return byFamily(f, "192.0.2.2", "2001:db8:1::2") }

func byFamily(f Family, v4, v6 string) netip.Addr {
	if f == V4 {
		return netip.MustParseAddr(v4)
	}
	return netip.MustParseAddr(v6)
}

// remoteAddr returns an address beyond the uplink's network. The first two belong to the
// outside. For the others the outside answers as a router does.
func remoteAddr(f Family, last int) netip.Addr {
	return byFamily(f, fmt.Sprintf("198.51.100.%d", last), fmt.Sprintf("2001:db8:7::%d", last))
}

// Last parts of remote addresses.
const (
	remoteServer      = 7
	remoteOther       = 8
	remoteUnreachable = 101 // ICMP: host unreachable
	remoteProhibited  = 102 // ICMP: administratively prohibited
	remoteSilent      = 103 // no answer
	remoteNoRoute     = 104 // the host itself has no route
)

// Addresses of the outside that must not be reachable by default: a cloud's metadata
// services, which have a machine's secrets, and a link-local address.
var (
	metadata  = netip.MustParseAddr("169.254.169.254")
	metadata6 = netip.MustParseAddr("fd00:ec2::254")
	linkLocal = netip.MustParseAddr("169.254.7.7")
)

// firstPort is the first of the ports that are forwarded by default.
const (
	firstPort    = 20000
	forwardCount = 16
)

// forwarded returns the default forwards.
func forwarded() []Forward {
	var out []Forward
	for _, proto := range []string{"tcp", "udp"} {
		out = append(out, Forward{Proto: proto, Port: firstPort, To: firstPort, Count: forwardCount})
	}
	return out
}

// Conditions are what a case requires of the topology.
type Conditions struct {
	NoPing bool // ordinary users of the host may not ping
}

// NewTopology builds a topology. The caller must close it.
func NewTopology(c Conditions) (*Topology, error) {
	s := &Topology{}
	if err := s.build(c); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Topology) build(c Conditions) error {
	err := useTestResolver()
	if err != nil {
		return err
	}
	if s.Dir, err = os.MkdirTemp("", "usernettest"); err != nil {
		return err
	}
	for _, n := range []struct {
		to   **lab.Node
		name string
	}{{&s.Outside, "outside"}, {&s.Host, "host"}, {&s.Container, "container"}} {
		if *n.to, err = lab.NewNode(n.name); err != nil {
			return err
		}
		if err := sysctls(*n.to); err != nil {
			return err
		}
		if n.to == &s.Host && c.NoPing {
			continue // in a new namespace nobody may
		}
		if err := (*n.to).Sysctl("net/ipv4/ping_group_range", "0 0"); err != nil {
			return err
		}
	}
	if err := lab.Connect(lab.End{Node: s.Host, Name: uplink}, lab.End{Node: s.Outside, Name: uplink}, lab.Cable{}); err != nil {
		return err
	}
	if err := errors.Join(s.addresses(), s.routes()); err != nil {
		return err
	}
	s.Netns = filepath.Join(s.Dir, "netns")
	return s.Container.NS.Pin(s.Netns)
}

// sysctls make errors arrive soon and always, make addresses usable at once, and give all
// paths the same congestion control.
func sysctls(n *lab.Node) error {
	for _, set := range []struct{ name, value string }{
		{"net/ipv4/tcp_congestion_control", "reno"},
		{"net/ipv4/tcp_syn_retries", "1"},
		{linearTimeouts, "0"},
		{"net/ipv4/icmp_ratelimit", "0"},
		{"net/ipv6/icmp/ratelimit", "0"},
		{"net/ipv6/conf/default/accept_dad", "0"},
	} {
		err := n.Sysctl(set.name, set.value)
		if errors.Is(err, fs.ErrNotExist) && set.name == linearTimeouts {
			continue // Linux before 6.5 behaves as with 0
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const linearTimeouts = "net/ipv4/tcp_syn_linear_timeouts"

func (s *Topology) addresses() error {
	net4, net6 := netip.PrefixFrom(HostAddr(V4), 24), netip.PrefixFrom(HostAddr(V6), 64)
	out4, out6 := netip.PrefixFrom(OutsideAddr(V4), 24), netip.PrefixFrom(OutsideAddr(V6), 64)
	local := []netip.Prefix{hostPrefix(metadata), hostPrefix(metadata6), hostPrefix(linkLocal)}
	for _, last := range []int{remoteServer, remoteOther, remoteUnreachable, remoteProhibited} {
		local = append(local, hostPrefix(remoteAddr(V4, last)), hostPrefix(remoteAddr(V6, last)))
	}
	return errors.Join(s.Host.Address(uplink, net4, net6), s.Outside.Address(uplink, out4, out6), s.Outside.Address("lo", local...))
}

// routes gives the host a default route, and makes the outside behave as a router.
func (s *Topology) routes() error {
	errs := []error{
		s.Outside.Sysctl("net/ipv4/ip_forward", "1"),
		s.Outside.Sysctl("net/ipv6/conf/all/forwarding", "1"),
	}
	for _, f := range []Family{V4, V6} {
		errs = append(errs,
			addRoute(s.Host, netip.Prefix{}, OutsideAddr(f), 0),
			addRoute(s.Host, hostPrefix(remoteAddr(f, remoteNoRoute)), netip.Addr{}, unix.RTN_UNREACHABLE),
			addRoute(s.Outside, hostPrefix(remoteAddr(f, remoteSilent)), netip.Addr{}, unix.RTN_BLACKHOLE),
		)
	}
	return errors.Join(append(errs, addRejections(s.Outside))...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// AddRoute adds a route through a gateway to a node. The zero prefix is the default
// route.
func AddRoute(n *lab.Node, to netip.Prefix, via netip.Addr) error { return addRoute(n, to, via, 0) }

// addRoute adds a route through a gateway, or one of the given type without a gateway.
// The zero prefix is the default route.
func addRoute(n *lab.Node, to netip.Prefix, via netip.Addr, kind int) error {
	return changeRoute(n, to, via, kind, (*netlink.Handle).RouteReplace)
}

// removeRoute removes a route that addRoute has added.
func removeRoute(n *lab.Node, to netip.Prefix, via netip.Addr, kind int) error {
	return changeRoute(n, to, via, kind, (*netlink.Handle).RouteDel)
}

func changeRoute(n *lab.Node, to netip.Prefix, via netip.Addr, kind int, change func(*netlink.Handle, *netlink.Route) error) error {
	h, err := link.Handle(n.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	r := &netlink.Route{Type: kind}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	}
	if to.IsValid() {
		r.Dst = ipNet(to)
	}
	if err := change(h, r); err != nil {
		return fmt.Errorf("change route of %s to %v: %w", n, to, err)
	}
	return nil
}

// useTestResolver makes this process and its children, which are in the lab's mount
// namespace, use the outside's nameserver. It runs once: concurrent calls would
// interfere.
var useTestResolver = sync.OnceValue(func() error {
	const conf = "/etc/resolv.conf"
	want := fmt.Sprintf("nameserver %s\nnameserver %s\n", OutsideAddr(V4), OutsideAddr(V6))
	if now, err := os.ReadFile(conf); err == nil && string(now) == want {
		return nil
	}
	f, err := os.CreateTemp("", "resolv.conf")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	_, err = f.WriteString(want)
	if err := errors.Join(err, f.Chmod(0o644)); err != nil {
		return err
	}
	if err := unix.Mount(f.Name(), conf, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", f.Name(), conf, err)
	}
	return nil
})

// Close removes the topology.
func (s *Topology) Close() error {
	var errs []error
	if s.Netns != "" {
		errs = append(errs, netns.Unpin(s.Netns))
	}
	for _, n := range []*lab.Node{s.Container, s.Host, s.Outside} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	if s.Dir != "" {
		errs = append(errs, os.RemoveAll(s.Dir))
	}
	return errors.Join(errs...)
}

// awaitAddress waits until the container's link is up and has a usable address of each
// given family. It stops waiting when ended returns true.
func (s *Topology) awaitAddress(ctx context.Context, device string, families []Family, ended func() bool) error {
	h, err := link.Handle(s.Container.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	return await(ctx, func() error {
		if ended() {
			return nil
		}
		l, err := h.LinkByName(device)
		if err != nil {
			return fmt.Errorf("link %q on %s: %w", device, s.Container, err)
		}
		for _, f := range families {
			if a, err := usableAddress(h, l, f); err != nil || a == nil {
				return errors.Join(fmt.Errorf("link %q on %s has no address of %s", device, s.Container, f), err)
			}
		}
		return nil
	})
}

// usableAddress returns the link's first address that packets can be sent from, or nil.
func usableAddress(h *netlink.Handle, l netlink.Link, f Family) (*netlink.Addr, error) {
	family := map[Family]int{V4: netlink.FAMILY_V4, V6: netlink.FAMILY_V6}[f]
	all, err := h.AddrList(l, family)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unix.IFA_F_TENTATIVE == 0 {
			return &a, nil
		}
	}
	return nil, nil
}

// Guest returns the container's own address, or an invalid one.
func (s *Topology) Guest(device string, f Family) (netip.Addr, error) {
	h, err := link.Handle(s.Container.NS)
	if err != nil {
		return netip.Addr{}, err
	}
	defer h.Close()
	l, err := h.LinkByName(device)
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := usableAddress(h, l, f)
	if err != nil || a == nil {
		return netip.Addr{}, err
	}
	got, _ := netip.AddrFromSlice(a.IP)
	return got.Unmap(), nil
}

// pollInterval is how often a condition is checked.
const pollInterval = 2 * time.Millisecond

// await waits until the condition holds. If ctx ends first, it returns the condition's
// last error.
func await(ctx context.Context, holds func() error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
