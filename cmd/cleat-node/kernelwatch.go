package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cleat/link"
	"cleat/network/span"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watchPause is how long removals are collected before the kernel's tables are compared.
const watchPause = 200 * time.Millisecond

// watchKernel signals stale when routes, neighbours or devices of package span have been removed, until ctx ends. The
// next look at them would find that only after some seconds. Removals of the node's own signal as well, which costs a
// look that finds nothing.
func (d *dataplane) watchKernel(ctx context.Context) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		d.log("removed routes are noticed late: %v", fmt.Errorf("subscribe to changes of routes: %w", err))
		return
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	var collect *time.Timer
	devices := map[int32]bool{} // indexes of the devices of package span
	for _, name := range span.Devices() {
		if l, err := link.Find(d.host, name); err == nil {
			devices[int32(l.Index())] = true
		}
	}
	for {
		messages, _, err := s.Receive()
		removed := errors.Is(err, unix.ENOBUFS) // who knows what was in the messages that are lost
		if err != nil && !removed {
			if ctx.Err() == nil {
				d.log("removed routes are noticed late: %v", fmt.Errorf("receive changes of routes: %w", err))
			}
			return
		}
		for i := range messages {
			removed = isRemoval(messages[i].Header.Type, messages[i].Data, devices) || removed
		}
		if removed {
			if collect != nil {
				collect.Stop()
			}
			collect = time.AfterFunc(watchPause, func() { signal(d.stale) })
		}
	}
}

// isRemoval reports whether a message of the kernel means that something of package span is gone (struct rtmsg, ndmsg and
// ifinfomsg, include/uapi/linux/rtnetlink.h and neighbour.h).
func isRemoval(kind uint16, message []byte, devices map[int32]bool) bool {
	const header = 12 // bytes that all of these structs have
	if len(message) < header {
		return false
	}
	index := int32(nl.NativeEndian().Uint32(message[4:]))
	switch kind {
	case unix.RTM_DELROUTE:
		return message[5] == span.Protocol
	case unix.RTM_DELNEIGH:
		return devices[index]
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if l, err := netlink.LinkDeserialize(nil, message); err != nil || !span.IsDevice(l.Attrs().Name) {
			return false
		}
		if devices[index] = true; kind == unix.RTM_DELLINK {
			delete(devices, index)
			return true
		}
		return nl.NativeEndian().Uint32(message[8:])&unix.IFF_UP == 0
	}
	return false
}
