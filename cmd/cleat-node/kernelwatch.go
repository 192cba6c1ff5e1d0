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

// watchKernel signals stale when routes, neighbours or devices of package span have been removed, and when the uplink
// goes up or down, until ctx ends. The next look at them would find that only after some seconds. Removals of the
// node's own signal as well, which costs a look that finds nothing.
func (d *dataplane) watchKernel(ctx context.Context) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		d.log("removed routes are noticed late: %v", fmt.Errorf("subscribe to changes of routes: %w", err))
		return
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	var collect *time.Timer
	k := kernelDevices{own: map[int32]bool{}, up: map[int32]bool{}, uplink: d.uplinkName}
	for _, name := range span.Devices() {
		if l, err := link.Find(d.host, name); err == nil {
			k.own[int32(l.Index())] = true
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
			removed = k.isRemoval(messages[i].Header.Type, messages[i].Data) || removed
		}
		if removed {
			if collect != nil {
				collect.Stop()
			}
			collect = time.AfterFunc(watchPause, func() { signal(d.stale) })
		}
	}
}

func (d *dataplane) uplinkName() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.uplink
}

// kernelDevices is what the kernel's messages have said of devices.
type kernelDevices struct {
	own    map[int32]bool // indexes of those of package span
	up     map[int32]bool // indexes of others that are up
	uplink func() string  // name
}

// isRemoval reports whether a message of the kernel means that something of package span is gone, or may be (struct
// rtmsg, ndmsg and ifinfomsg, include/uapi/linux/rtnetlink.h and neighbour.h).
func (k *kernelDevices) isRemoval(kind uint16, message []byte) bool {
	const header = 12 // bytes that all of these structs have
	if len(message) < header {
		return false
	}
	index := int32(nl.NativeEndian().Uint32(message[4:]))
	switch kind {
	case unix.RTM_DELROUTE:
		return message[5] == span.Protocol
	case unix.RTM_DELNEIGH:
		return k.own[index]
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l, err := netlink.LinkDeserialize(nil, message)
		if err != nil {
			return false
		}
		up := kind == unix.RTM_NEWLINK && nl.NativeEndian().Uint32(message[8:])&unix.IFF_UP != 0
		if !span.IsDevice(l.Attrs().Name) {
			return k.turned(index, up) && l.Attrs().Name == k.uplink()
		}
		if k.own[index] = true; kind == unix.RTM_DELLINK {
			delete(k.own, index)
		}
		return !up
	}
	return false
}

// turned notes whether a device is up, and reports whether that is news. The kernel removes the IPv4 routes of a device
// that goes down, without a message for each.
func (k *kernelDevices) turned(index int32, up bool) bool {
	was := k.up[index]
	if up {
		k.up[index] = true
	} else {
		delete(k.up, index)
	}
	return up != was
}
