package supervisor

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"

	"cleat/internal/nlsock"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// routes tells which destinations are reached through the device that leads out of the
// namespace. It is safe for concurrent use.
type routes struct {
	lookups *nlsock.Socket
	events  *nlsock.News
	index   uint32        // of the device
	changes atomic.Uint64 // batches of events so far
}

// routeGroups are the multicast groups for changes that affect routes
// (include/uapi/linux/rtnetlink.h).
var routeGroups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
}

var native = binary.NativeEndian

// newRoutes uses two NETLINK_ROUTE sockets of the namespace. They remain the caller's.
func newRoutes(lookups, events int, device string) (*routes, error) {
	r := &routes{}
	var err error
	if r.events, err = nlsock.Join(events, routeGroups...); err != nil {
		return nil, fmt.Errorf("subscribe to route changes inside: %w", err)
	}
	if r.lookups, err = nlsock.New(lookups); err != nil {
		return nil, fmt.Errorf("prepare route lookups inside: %w", err)
	}
	ifreq, err := unix.NewIfreq(device)
	if err == nil {
		err = unix.IoctlIfreq(lookups, unix.SIOCGIFINDEX, ifreq)
	}
	if err != nil {
		return nil, fmt.Errorf("find device %q inside: %w", device, err)
	}
	r.index = ifreq.Uint32()
	return r, nil
}

// outside reports whether packets to an address leave through the device. It returns false
// if the kernel has no answer.
func (r *routes) outside(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
		return false
	}
	family := uint8(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	attributes := netlink.NewAttributeEncoder()
	attributes.Bytes(unix.RTA_DST, a.AsSlice())
	to, err := attributes.Encode()
	if err != nil {
		return false
	}
	request := make([]byte, unix.SizeofRtMsg, 64)
	request[0], request[1] = family, uint8(a.BitLen())
	_, answer, err := r.lookups.Ask(nlsock.Request{Kind: unix.RTM_GETROUTE, Body: append(request, to...)})
	return err == nil && leadsTo(answer, r.index)
}

// leadsTo reports whether a route (struct rtmsg and attributes) is a unicast route through
// a device.
func leadsTo(route []byte, device uint32) bool {
	if len(route) < unix.SizeofRtMsg || route[7] != unix.RTN_UNICAST { // rtm_type
		return false
	}
	attributes, err := netlink.NewAttributeDecoder(route[unix.SizeofRtMsg:])
	for err == nil && attributes.Next() {
		if attributes.Type() == unix.RTA_OIF {
			return attributes.Uint32() == device && attributes.Err() == nil
		}
	}
	return false
}

// outsideCache caches the answers of routes.outside until the routes change.
type outsideCache struct {
	version uint64
	answers lru[netip.Addr, bool]
}

func (c *outsideCache) get(a netip.Addr, r *routes) bool {
	version := r.changes.Load()
	if r.events.Any() {
		version = r.changes.Add(1)
	}
	if version != c.version {
		c.version = version
		c.answers.clear()
	}
	outside, ok := c.answers.get(a)
	if !ok {
		outside = r.outside(a)
		c.answers.put(a, outside)
	}
	return outside
}
