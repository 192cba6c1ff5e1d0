package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteLoopback makes published ports of endpoints behind a device reachable at 127.0.0.1 and
// ::1 for the host's own programs. It is called once for each device, after Sync. What it does
// vanishes with the device.
//
// For IPv4 it sets the device's sysctl route_localnet. The table drops what endpoints
// themselves send to 127.0.0.0/8, which this sysctl would otherwise permit. For IPv6 it adds a
// local route to ::1 through the device: the kernel looks for the way of a packet to ::1 on the
// device that it came from only (rt6_need_strict, net/ipv6/route.c). The kernel drops what
// endpoints themselves send to ::1 (ip6_rcv_core, net/ipv6/ip6_input.c).
func (t Table) RouteLoopback(device string) error {
	if err := validateDevice(device); err != nil {
		return err
	}
	err := t.NS.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/"+device+"/route_localnet", []byte("1"), 0)
	})
	if err == nil {
		err = t.addLoopbackRoute(device)
	}
	if err != nil {
		return fmt.Errorf("route loopback addresses through %s in %s: %w", device, t.NS, err)
	}
	return nil
}

// defaultMetric is that of IPv6 routes (IP6_RT_PRIO_USER, include/uapi/linux/ipv6_route.h).
const defaultMetric = 1024

func (t Table) addLoopbackRoute(device string) error {
	h, err := link.Handle(t.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(device)
	if err != nil {
		return err
	}
	index := l.Attrs().Index
	// Of routes to one address with one metric, the kernel takes the first only, whatever its device.
	err = h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: hostNet(netip.IPv6Loopback()), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Priority: defaultMetric + index})
	if errors.Is(err, unix.EEXIST) || isMissingFamily(err) || errors.Is(err, unix.EACCES) {
		return nil // EACCES: IPv6 is disabled on the device
	}
	return err
}
