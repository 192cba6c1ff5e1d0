package supervisor

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"

	"cleat/internal/nlsock"

	"golang.org/x/sys/unix"
)

// routes knows which destinations lie beyond the device. It is safe for concurrent use.
type routes struct {
	kernel  *nlsock.Socket
	news    *nlsock.News
	index   uint32
	changes atomic.Uint64 // news so far: what was learned before is void
}

// groups are the news that change routes (include/uapi/linux/rtnetlink.h).
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
}

var native = binary.NativeEndian

func newRoutes(fd, news int, device string) (*routes, error) {
	r := &routes{}
	var err error
	if r.news, err = nlsock.Join(news, groups...); err != nil {
		return nil, fmt.Errorf("ask for news about routes inside: %w", err)
	}
	if r.kernel, err = nlsock.New(fd); err != nil {
		return nil, fmt.Errorf("ask for routes inside: %w", err)
	}
	body := nlsock.AppendAttribute(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_IFNAME, append([]byte(device), 0))
	_, answer, err := r.kernel.Ask(nlsock.Request{Kind: unix.RTM_GETLINK, Body: body})
	if err != nil {
		return nil, fmt.Errorf("find device %q inside: %w", device, err)
	}
	if len(answer) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("find device %q inside: the answer is too short", device)
	}
	r.index = native.Uint32(answer[4:])
	return r, nil
}

// state identifies what the routes are like now: it is another one after each change.
func (r *routes) state() uint64 {
	if r.news.Any() {
		return r.changes.Add(1)
	}
	return r.changes.Load()
}

// outside reports whether packets to an address leave by the device. An address that the
// kernel says nothing about is inside.
func (r *routes) outside(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
		return false
	}
	body := make([]byte, unix.SizeofRtMsg, 64)
	body[0], body[1] = unix.AF_INET, 32
	if a.Is6() {
		body[0], body[1] = unix.AF_INET6, 128
	}
	_, answer, err := r.kernel.Ask(nlsock.Request{Kind: unix.RTM_GETROUTE, Body: nlsock.AppendAttribute(body, unix.RTA_DST, a.AsSlice())})
	return err == nil && leadsTo(answer, r.index)
}

// leadsTo reports whether a route (struct rtmsg and attributes) is a unicast one by a
// device.
func leadsTo(route []byte, device uint32) bool {
	if len(route) < unix.SizeofRtMsg || route[7] != unix.RTN_UNICAST {
		return false
	}
	for kind, value := range nlsock.Attributes(route[unix.SizeofRtMsg:]) {
		if kind == unix.RTA_OIF && len(value) >= 4 {
			return native.Uint32(value) == device
		}
	}
	return false
}
