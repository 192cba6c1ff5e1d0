package pasta

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"

	"cleat/compat/portspec"
	"cleat/dns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ReadHost describes the current network namespace. link4 and link6 are the links to
// resemble in each family; "" means the link of the default route, or else the first with
// a global address. A missing link is an error.
func ReadHost(link4, link6 string) (Host, error) {
	var h Host
	var err error
	if h.Link4, err = template(link4, unix.AF_INET); err != nil {
		return h, err
	}
	if h.Link6, err = template(link6, unix.AF_INET6); err != nil {
		return h, err
	}
	if h.Nameservers, h.Search, err = nameservers("/etc/resolv.conf"); err != nil {
		return h, err
	}
	h.Ephemeral = ephemeral()
	return h, nil
}

// template finds the link and what to copy from it.
func template(name string, family int) (Template, error) {
	routes, err := netlink.RouteList(nil, family)
	if family == unix.AF_INET6 && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)) {
		return Template{}, nil // a kernel without IPv6
	}
	if err != nil {
		return Template{}, fmt.Errorf("list routes: %w", err)
	}
	if name != "" {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return Template{}, fmt.Errorf("find link %q: %w", name, err)
		}
		t, err := fromLink(l, family)
		_, t.Gateway = defaultRoute(routes, l.Attrs().Index)
		return t, err
	}
	if index, gateway := defaultRoute(routes, 0); index != 0 {
		l, err := netlink.LinkByIndex(index)
		if err != nil {
			return Template{}, fmt.Errorf("find link %d: %w", index, err)
		}
		if t, err := fromLink(l, family); err != nil || t.Addr.IsValid() {
			t.Gateway = gateway
			return t, err
		}
	}
	return firstUsable(family)
}

// firstUsable returns the first link that is up and has an address of the family.
func firstUsable(family int) (Template, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return Template{}, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback != 0 || l.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		if t, err := fromLink(l, family); err != nil || t.Addr.IsValid() {
			return t, err
		}
	}
	return Template{}, nil
}

// hop returns the next hop of a route. For a multipath route it is the one with the
// largest weight.
func hop(r netlink.Route) (link int, gateway net.IP) {
	if len(r.MultiPath) == 0 {
		return r.LinkIndex, r.Gw
	}
	best := slices.MaxFunc(r.MultiPath, func(a, b *netlink.NexthopInfo) int { return a.Hops - b.Hops })
	return best.LinkIndex, best.Gw
}

// defaultRoute returns the link and the gateway of the default route that the kernel
// prefers, among those through the link with the index through, or among all if that is 0.
// link is 0 if there is none.
func defaultRoute(routes []netlink.Route, through int) (link int, gateway netip.Addr) {
	priority := math.MaxInt
	for _, r := range routes {
		bits := 0
		if r.Dst != nil {
			bits, _ = r.Dst.Mask.Size()
		}
		l, gw := hop(r)
		if r.Type == unix.RTN_UNICAST && bits == 0 && (through == 0 || l == through) && r.Priority < priority {
			a, _ := netip.AddrFromSlice(gw)
			link, gateway, priority = l, a.Unmap(), r.Priority
		}
	}
	return link, gateway
}

// passing are flags of IPv6 addresses that a namespace should not copy.
const passing = unix.IFA_F_TENTATIVE | unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY

// fromLink returns the link's name and its first global address, preferring permanent
// addresses.
func fromLink(l netlink.Link, family int) (Template, error) {
	t := Template{Link: l.Attrs().Name}
	addrs, err := netlink.AddrList(l, family)
	if err != nil {
		return t, fmt.Errorf("list addresses of %q: %w", t.Link, err)
	}
	for _, skip := range []int{passing, 0} {
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			if ip = ip.Unmap(); !ok || a.Flags&skip != 0 && family == unix.AF_INET6 || !plain(ip) || ip.IsLinkLocalUnicast() && ip.Is6() {
				continue
			}
			bits, _ := a.Mask.Size()
			t.Addr = netip.PrefixFrom(ip, bits)
			return t, nil
		}
	}
	return t, nil
}

// nameservers returns the servers and the search domains in a resolv.conf. A missing file has
// none.
func nameservers(path string) (addrs []netip.Addr, search []string, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	conf, err := dns.ParseResolvConf(f)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	for _, s := range conf.Servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs, conf.Search, nil
}

// ephemeral returns the kernel's range of ephemeral ports, or its default range if that
// cannot be read.
func ephemeral() portspec.Ports {
	p := portspec.Ports{First: 32768, Last: 60999}
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range") // also for IPv6
	if err != nil {
		return p
	}
	var told portspec.Ports
	if _, err := fmt.Sscan(string(b), &told.First, &told.Last); err != nil || told.First > told.Last {
		return p
	}
	return told
}
