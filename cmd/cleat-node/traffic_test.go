package main

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"cleat/network/firewall"
	"cleat/overlay/control"
	"cleat/packet"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestMeter looks at a table of connections several times. What flows have must only grow.
func TestMeter(t *testing.T) {
	in := netip.MustParseAddr
	one, other, outside := in("10.64.0.2"), in("10.64.0.66"), in("198.51.100.7")
	inside := []netip.Prefix{netip.MustParsePrefix("10.64.0.0/18")}
	conn := func(id uint32, from, to netip.Addr, port uint16, size uint64) firewall.Tracked {
		return firewall.Tracked{ID: id, Client: from, Server: to, Protocol: packet.TCP, Port: port, Counted: true, Requests: size, Answers: 2 * size, Packets: size / 10}
	}
	flow := func(from, to netip.Addr, port uint16, connections int, size uint64) control.Flow {
		return control.Flow{From: from, To: to, Protocol: "tcp", Port: port, Volume: control.Volume{Connections: connections, Counted: connections, Requests: size, Answers: 2 * size, Packets: size / 10}}
	}
	uncounted := firewall.Tracked{ID: 9, Client: one, Server: other, Protocol: 1}
	icmp := control.Flow{From: one, To: other, Protocol: "icmp", Volume: control.Volume{Connections: 1}}
	var m meter
	now := time.Unix(1e9, 0)
	for _, step := range []struct {
		name  string
		after time.Duration
		table []firewall.Tracked
		want  []control.Flow
	}{
		{"two connections are one flow", 0, []firewall.Tracked{conn(1, one, other, 80, 100), conn(2, one, other, 80, 50)}, []control.Flow{flow(one, other, 80, 2, 150)}},
		{"one has grown, the other has ended", time.Second, []firewall.Tracked{conn(1, one, other, 80, 300)}, []control.Flow{flow(one, other, 80, 1, 350)}},
		{"a new one has the ID of an old one", time.Second, []firewall.Tracked{conn(1, one, other, 80, 10)}, []control.Flow{flow(one, other, 80, 1, 360)}},
		{"all have ended", time.Second, nil, []control.Flow{flow(one, other, 80, 0, 360)}},
		{"addresses outside are one", time.Second, []firewall.Tracked{conn(3, outside, one, 443, 20), conn(4, outside.Next(), one, 443, 20), conn(5, outside, outside.Next(), 443, 20), uncounted},
			[]control.Flow{flow(one, other, 80, 0, 360), flow(netip.Addr{}, one, 443, 2, 40), icmp}},
		{"idle flows are forgotten", keepIdle + time.Second, []firewall.Tracked{uncounted}, []control.Flow{icmp}},
	} {
		now = now.Add(step.after)
		got, left, err := m.read(now, inside, func(each func(firewall.Tracked)) error {
			for _, c := range step.table {
				each(c)
			}
			return nil
		})
		if diff := cmp.Diff(step.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || left != 0 || err != nil {
			t.Fatalf("%s: %d left, %v\n%s", step.name, left, err, diff)
		}
	}
}

func TestMeterIsBounded(t *testing.T) {
	var m meter
	a := netip.MustParseAddr("10.64.0.2")
	all := make([]firewall.Tracked, 3*keepFlows)
	for i := range all {
		all[i] = firewall.Tracked{ID: uint32(i), Client: a, Server: a, Protocol: packet.UDP, Port: uint16(i)}
	}
	got, left, err := m.read(time.Now(), []netip.Prefix{netip.PrefixFrom(a, 32)}, func(each func(firewall.Tracked)) error {
		for c := range slices.Values(all) {
			each(c)
		}
		return nil
	})
	if len(got) != maxFlows || left != keepFlows-maxFlows || err != nil {
		t.Errorf("%d flows, %d left, %v", len(got), left, err)
	}
}
