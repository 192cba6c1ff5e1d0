package mptcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

type target struct {
	endpoints []link.MPTCPEndpoint // without ids
	rules     []rule
	routes    []route
	limits    link.MPTCPLimits
	used      []string // devices that connections can use
	unused    []string // those without a place
}

// source is an address of a device.
type source struct {
	device string
	index  int
	addr   netip.Addr
}

func (s source) family() int { return nl.GetIPFamily(s.addr.AsSlice()) }

// sources returns the devices' addresses, one of each family.
func (c Config) sources(h *netlink.Handle) ([]source, error) {
	var all []source
	for i, name := range c.Devices {
		if slices.Contains(c.Devices[:i], name) {
			continue
		}
		l, err := h.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil, &DeviceError{name, "does not exist", "ip -brief link lists those that do"}
		}
		if err != nil {
			return nil, fmt.Errorf("find link %q: %w", name, err)
		}
		switch {
		case l.Attrs().Flags&net.FlagLoopback != 0:
			return nil, &DeviceError{name, "is the loopback device", ""}
		case l.Attrs().Flags&net.FlagUp == 0:
			return nil, &DeviceError{name, "is down", "ip link set " + name + " up"}
		}
		found, err := c.sourcesOf(h, l)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, &DeviceError{name, "has no address that other hosts can reach" + c.ofFamily(), "ip -brief address lists addresses; link-local ones do not count"}
		}
		all = append(all, found...)
	}
	return all, nil
}

func (c Config) ofFamily() string {
	if c.Family == 0 {
		return ""
	}
	return fmt.Sprintf(" over IPv%d", c.Family)
}

// unusable are the flags of addresses that are deprecated, invalid or temporary
// (include/uapi/linux/if_addr.h).
const unusable = unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY // in IPv4: secondary

func (c Config) sourcesOf(h *netlink.Handle, l netlink.Link) ([]source, error) {
	var all []source
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if c.Family == 4 && family == unix.AF_INET6 || c.Family == 6 && family == unix.AF_INET {
			continue
		}
		addrs, err := h.AddrList(l, family)
		if err != nil {
			return nil, fmt.Errorf("list addresses of link %q: %w", l.Attrs().Name, err)
		}
		best := netip.Addr{}
		for _, a := range addrs {
			ip := prefixOf(a.IPNet, family).Addr()
			if a.Scope != unix.RT_SCOPE_UNIVERSE || a.Flags&unusable != 0 {
				continue
			}
			// Use a unique local address (RFC 4193) only if there is no other.
			if !best.IsValid() || best.Is6() && best.IsPrivate() && !ip.IsPrivate() {
				best = ip
			}
		}
		if best.IsValid() {
			all = append(all, source{l.Attrs().Name, l.Attrs().Index, best})
		}
	}
	return all, nil
}

// target computes the wanted state. places is the number of endpoints available to us.
func (c Config) target(g *routing, all []source, places int) target {
	slices.SortStableFunc(all, func(a, b source) int { return a.family() - b.family() }) // IPv4 first
	t := target{limits: link.MPTCPLimits{Subflows: c.Limits, AcceptedAddAddrs: c.Limits}}
	first, listed, left := c.share(g, all, min(places, c.Limits))
	for _, s := range slices.Concat(first, listed) {
		if !slices.Contains(t.used, s.device) {
			t.used = append(t.used, s.device)
		}
		if !g.needsTable(s.family(), s.index) {
			continue
		}
		t.rules = append(t.rules, rule{s.addr, tableOf(s.index)})
		t.routes = append(t.routes, g.table(s.family(), s.index)...)
	}
	for _, s := range listed {
		t.endpoints = append(t.endpoints, c.endpoint(s))
	}
	for _, s := range left {
		if !slices.Contains(t.used, s.device) && !slices.Contains(t.unused, s.device) {
			t.unused = append(t.unused, s.device)
		}
	}
	return t
}

// endpoint returns an endpoint that is not bound to its device; the rule for its address
// chooses the device. With a binding, the kernel takes unreachable addresses for
// reachable (ip_route_output_key_hash_rcu, net/ipv4/route.c), and a subflow that cannot
// be established occupies its place until it times out.
func (c Config) endpoint(s source) link.MPTCPEndpoint {
	return link.MPTCPEndpoint{
		Addr: s.addr, Signal: c.Signal, Subflow: c.Subflow, FullMesh: c.FullMesh,
		Backup: slices.Contains(c.Backup, s.device),
	}
}

// share selects the addresses that get an endpoint. If there are too many, the first
// address of each family on which connections start needs none.
func (c Config) share(g *routing, all []source, places int) (first, listed, left []source) {
	if len(all) <= places {
		return nil, all, nil
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		of := func(s source) bool { return s.family() == family }
		i := slices.IndexFunc(all, func(s source) bool { return of(s) && s.index == g.defaultLink(family) })
		if i < 0 {
			i = slices.IndexFunc(all, of)
		}
		if i >= 0 && len(all) > places {
			first = append(first, all[i])
			all = slices.Delete(slices.Clone(all), i, i+1)
		}
	}
	n := min(places, len(all))
	return first, all[:n], all[n:]
}

// Describe returns an endpoint in the words of ip-mptcp(8).
func Describe(e link.MPTCPEndpoint) string {
	words := []string{e.Addr.String(), "id", fmt.Sprint(e.ID)}
	if e.Device != "" {
		words = append(words, "dev", e.Device)
	}
	for _, f := range []struct {
		name string
		on   bool
	}{{"signal", e.Signal}, {"subflow", e.Subflow}, {"backup", e.Backup}, {"fullmesh", e.FullMesh}} {
		if f.on {
			words = append(words, f.name)
		}
	}
	return strings.Join(words, " ")
}
