package main

import (
	"encoding/binary"
	"testing"

	"cleat/network/span"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestIsRemoval takes messages of the kernel in their order.
func TestIsRemoval(t *testing.T) {
	link := func(name string, index int32, flags uint32) []byte {
		m := nl.NewIfInfomsg(unix.AF_UNSPEC)
		m.Index, m.Flags = index, flags
		return append(m.Serialize(), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)).Serialize()...)
	}
	neighbour := func(index int32) []byte { // struct ndmsg
		return append(binary.NativeEndian.AppendUint32(make([]byte, 4), uint32(index)), make([]byte, 4)...)
	}
	k := kernelDevices{own: map[int32]bool{}, up: map[int32]bool{}, uplink: func() string { return "eth1" }}
	for i, m := range []struct {
		name    string
		kind    uint16
		message []byte
		want    bool
	}{
		{"a neighbour of an unknown device", unix.RTM_DELNEIGH, neighbour(4), false},
		{"VXLAN is up", unix.RTM_NEWLINK, link(span.Device, 4, unix.IFF_UP), false},
		{"its neighbour", unix.RTM_DELNEIGH, neighbour(4), true},
		{"Geneve is up", unix.RTM_NEWLINK, link(span.GeneveDevice, 5, unix.IFF_UP), false},
		{"its neighbour", unix.RTM_DELNEIGH, neighbour(5), true},
		{"WireGuard is down", unix.RTM_NEWLINK, link(span.WireGuardDevices[1], 6, 0), true},
		{"WireGuard is gone", unix.RTM_DELLINK, link(span.WireGuardDevices[1], 6, 0), true},
		{"Geneve is gone", unix.RTM_DELLINK, link(span.GeneveDevice, 5, 0), true},
		{"its neighbour, late", unix.RTM_DELNEIGH, neighbour(5), false},
		{"another device is gone", unix.RTM_DELLINK, link("eth0", 2, 0), false},
		{"the uplink is heard of", unix.RTM_NEWLINK, link("eth1", 3, unix.IFF_UP), true},
		{"it has a carrier", unix.RTM_NEWLINK, link("eth1", 3, unix.IFF_UP|unix.IFF_RUNNING), false},
		{"it is down", unix.RTM_NEWLINK, link("eth1", 3, 0), true},
		{"still down", unix.RTM_NEWLINK, link("eth1", 3, unix.IFF_PROMISC), false},
		{"another device is up", unix.RTM_NEWLINK, link("eth0", 2, unix.IFF_UP), false},
		{"the uplink is up", unix.RTM_NEWLINK, link("eth1", 3, unix.IFF_UP), true},
		{"the uplink is gone", unix.RTM_DELLINK, link("eth1", 3, unix.IFF_UP), true},
		{"a short message", unix.RTM_DELLINK, nil, false},
	} {
		if got := k.isRemoval(m.kind, m.message); got != m.want {
			t.Errorf("message %d, %s: %v, want %v", i, m.name, got, m.want)
		}
	}
}
