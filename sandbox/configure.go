package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// loopbackIndex is the index of the loopback interface in every network namespace:
// LOOPBACK_IFINDEX (include/net/flow.h).
const loopbackIndex = 1

// configStep is one rtnetlink request of configure.
type configStep struct {
	name     string // for errors, e.g. "add address 10.0.2.100/24"
	ipv6     bool   // a kernel without IPv6 is no error, unless plan.Need6 is set
	optional bool   // the network works without it
	do       func() error
}

// configure brings loopback up and, if the plan says so, gives the device its addresses
// and default routes.
func (g *Guest) configure(h *netlink.Handle, device netlink.Link) error {
	loopback := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loopbackIndex}}
	steps := []configStep{{name: "bring loopback up", do: func() error { return h.LinkSetUp(loopback) }}}
	if g.plan.Device == DeviceTAP {
		steps = append(steps, configStep{name: "set the device's Ethernet address", do: func() error { return h.LinkSetHardwareAddr(device, g.plan.MAC[:]) }})
	}
	if g.plan.Configure {
		steps = append(steps, g.deviceSteps(h, device)...)
	}
	for _, s := range steps {
		err := s.do()
		switch {
		case err == nil || s.optional:
		case s.ipv6 && !g.plan.Need6 && noIPv6(err):
			g.warn("%s: %v: the network has no IPv6", s.name, err)
		default:
			return &SetupError{Step: s.name, Err: err, Remedy: namespaceRemedy(err)}
		}
	}
	return nil
}

// txQueueLen is the device's queue length in packets of up to 64 KiB; a full queue drops.
// The default of 500 overflows when many streams start at once. 1000 packets last 6 ms at
// 2 Gbit/s of datagrams, and a busy machine may keep the host side from running for longer.
const txQueueLen = 4096

// deviceSteps returns the steps that configure the device.
//
// The queueing discipline is removed because the device's own queue suffices. The kernel's
// default one takes a lock, costs 5 % of a round trip, and for a device with several queues
// allocates megabytes for 256 of them.
func (g *Guest) deviceSteps(h *netlink.Handle, device netlink.Link) []configStep {
	p, index := &g.plan, device.Attrs().Index
	noQueue := &netlink.GenericQdisc{QdiscType: "noqueue", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT}}
	// The kernel must not add a link-local address, or solicit routers. On a TUN the address
	// would reach nobody; a TAP gets one below.
	const addrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE (include/uapi/linux/if_link.h)
	steps := []configStep{
		{name: "disable link-local IPv6 addresses", ipv6: true, do: func() error { return h.LinkSetIP6AddrGenMode(device, addrGenModeNone) }},
		{name: "remove the queueing discipline", optional: true, do: func() error { return h.QdiscReplace(noQueue) }},
		{name: "set the device's MTU", do: func() error { return h.LinkSetMTU(device, p.MTU) }},
		{name: "set the device's queue length", do: func() error { return h.LinkSetTxQLen(device, txQueueLen) }},
		{name: "bring the device up", do: func() error { return h.LinkSetUp(device) }},
	}
	if p.Device == DeviceTAP && p.Addr6.IsValid() {
		// The source of neighbour solicitations and of DHCPv6. Duplicate address detection would
		// delay it by a second.
		own := p.MAC.LinkLocal()
		addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(own, 64)), Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_LINK}
		steps = append(steps, configStep{name: "add address " + own.String(), ipv6: true, do: func() error { return h.AddrAdd(device, addr) }})
	}
	for _, f := range []struct {
		addr    netip.Prefix
		gateway netip.Addr
	}{{p.Addr4, p.Gateway4}, {p.Addr6, p.Gateway6}} {
		if !f.addr.IsValid() {
			continue
		}
		addr := &netlink.Addr{IPNet: ipNet(f.addr), Broadcast: net.IPv4zero} // no broadcast address: there is no link layer
		if f.addr.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // nobody else is on the link, so the address is usable at once
		}
		route := &netlink.Route{LinkIndex: index, Gw: f.gateway.AsSlice(), Protocol: unix.RTPROT_STATIC}
		if !f.addr.Contains(f.gateway) {
			route.Flags = int(netlink.FLAG_ONLINK)
		}
		steps = append(steps,
			configStep{name: "add address " + f.addr.String(), ipv6: f.addr.Addr().Is6(), do: func() error { return h.AddrAdd(device, addr) }},
			configStep{name: "add default route via " + f.gateway.String(), ipv6: f.addr.Addr().Is6(), do: func() error { return h.RouteAdd(route) }})
		if f.addr.Addr().Is6() {
			// The kernel adds the address's own local route later, on a workqueue
			// (addrconf_dad_work, net/ipv6/addrconf.c). On a busy machine the answer to the
			// guest's first datagram can arrive before, and would be dropped.
			local := &netlink.Route{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(f.addr.Addr(), 128)), Type: unix.RTN_LOCAL,
				Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST, Protocol: unix.RTPROT_STATIC}
			steps = append(steps, configStep{name: "add local route to " + f.addr.Addr().String(), ipv6: true, do: func() error { return h.RouteAdd(local) }})
		}
	}
	return steps
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// noIPv6 reports whether an error means that the kernel lacks IPv6 or has it disabled.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV)
}

// setSysctls sets the plan's sysctls. Failures are warnings, except that a kernel without
// IPv6 is expected to lack those of IPv6.
func (g *Guest) setSysctls() {
	for _, s := range g.plan.Sysctls {
		err := setSysctl(s[0], s[1])
		if err != nil && (g.plan.Need6 || !strings.HasPrefix(s[0], "net/ipv6/")) {
			g.warn("set sysctl: %v", err)
		}
	}
}

// removeTUN removes the TUN or TAP device of that name from the calling thread's network
// namespace. A link of another kind is left alone: the error then wraps EBUSY.
func removeTUN(name string) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %q: %w", name, err)
	}
	if _, ok := link.(*netlink.Tuntap); !ok {
		return fmt.Errorf("remove link %q: it is of kind %q, not a TUN or TAP: %w", name, link.Type(), unix.EBUSY)
	}
	if err := h.LinkDel(link); err != nil {
		return fmt.Errorf("remove link %q: %w", name, err)
	}
	return nil
}
