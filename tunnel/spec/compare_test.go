package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// running returns the tunnel of the full file, with texts replaced.
func running(t *testing.T, replace ...string) *Tunnel {
	t.Helper()
	f := load(t, strings.NewReplacer(replace...).Replace(full))
	if f.Tunnel == nil {
		t.Fatal(f.Findings)
	}
	return f.Tunnel
}

// names lists paths, with a ! after those that need another socket.
func names(paths []Path, changes []PathChange) string {
	var all []string
	for _, p := range paths {
		all = append(all, p.Name)
	}
	for _, c := range changes {
		name := c.New.Name
		if c.Rebind {
			name += "!"
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

func TestCompare(t *testing.T) {
	const second = "  - device: eth1\n    remote: \"[2001:db8::1]:4757\"\n    state: down\n    metered: true\n"
	for _, tt := range []struct {
		name    string
		replace []string
		want    func(Changes) bool // checks for the only expected change
	}{
		{"nothing", nil, Changes.IsEmpty},
		{"a path removed", []string{second, ""}, func(c Changes) bool { return names(c.PathsRemoved, nil) == "eth1" && c.count() == 1 }},
		{"a path added", []string{second, second + "  - {name: lte, device: wwan0, remote: 198.51.100.2}\n"}, func(c Changes) bool { return names(c.PathsAdded, nil) == "lte" && c.count() == 1 }},
		{"a path renamed", []string{"name: dsl", "name: vdsl"}, func(c Changes) bool {
			return names(c.PathsAdded, nil) == "vdsl" && names(c.PathsRemoved, nil) == "dsl" && c.count() == 2
		}},
		{"a path's rate", []string{"2.5G", "3G"}, func(c Changes) bool {
			return names(nil, c.PathsChanged) == "dsl" && c.PathsChanged[0].Old.RateBitsPerSec == 2.5e9 && c.PathsChanged[0].New.RateBitsPerSec == 3e9 && c.count() == 1
		}},
		{"a path's weight", []string{"weight: 3", "weight: 4"}, func(c Changes) bool { return names(nil, c.PathsChanged) == "dsl" && c.count() == 1 }},
		{"a path's mtu", []string{"mtu: 1500", "mtu: 1492"}, func(c Changes) bool { return names(nil, c.PathsChanged) == "dsl" && c.count() == 1 }},
		{"a path's metering", []string{"metered: true", "metered: false"}, func(c Changes) bool {
			return names(nil, c.PathsChanged) == "eth1" && c.count() == 1 && !c.PathsChanged[0].Rebind
		}},
		{"a path's state", []string{"state: down", "state: up"}, func(c Changes) bool { return names(nil, c.PathsChanged) == "eth1" && c.count() == 1 }},
		{"a path's device", []string{"device: eth0", "device: eth2"}, func(c Changes) bool { return names(nil, c.PathsChanged) == "dsl!" && c.count() == 1 }},
		{"a path's local address", []string{"192.0.2.1", "192.0.2.2"}, func(c Changes) bool { return names(nil, c.PathsChanged) == "dsl!" && c.count() == 1 }},
		{"a path's remote", []string{"198.51.100.2", "198.51.100.3"}, func(c Changes) bool { return names(nil, c.PathsChanged) == "dsl!" && c.count() == 1 }},
		{"a path's port", []string{"port: 4756", "port: 4758"}, func(c Changes) bool { return names(nil, c.PathsChanged) == "dsl!" && c.count() == 1 }},
		{"the tunnel's port", []string{"port: 4755", "port: 4760"}, func(c Changes) bool { return names(nil, c.PathsChanged) == "dsl! eth1!" && c.count() == 2 }},
		{"the order of paths", []string{second, "", "paths:\n", "paths:\n" + second}, Changes.IsEmpty},
		{"an address", []string{"10.9.0.1/30", "10.9.0.2/30"}, func(c Changes) bool {
			return slices.Equal(c.AddressesRemoved, []netip.Prefix{netip.MustParsePrefix("10.9.0.1/30")}) &&
				slices.Equal(c.AddressesAdded, []netip.Prefix{netip.MustParsePrefix("10.9.0.2/30")}) && c.count() == 2
		}},
		{"a route", []string{"10.20.0.0/16, ", ""}, func(c Changes) bool {
			return slices.Equal(c.RoutesRemoved, []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")}) && c.count() == 1
		}},
		{"another route", []string{"[10.20.0.0/16", "[10.21.0.0/16, 10.20.0.0/16"}, func(c Changes) bool {
			return slices.Equal(c.RoutesAdded, []netip.Prefix{netip.MustParsePrefix("10.21.0.0/16")}) && c.count() == 1
		}},
		{"the sources", []string{"sources: [0.0.0.0/0]", "sources: ['::/0']"}, func(c Changes) bool {
			return slices.Equal(c.SourcesRemoved, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}) &&
				slices.Equal(c.SourcesAdded, []netip.Prefix{netip.MustParsePrefix("::/0")}) && c.count() == 2
		}},
		{"the scheduler", []string{"scheduler: weighted", "scheduler: duplicate\nduplicate: 2"}, func(c Changes) bool { return c.New.Scheduler == Duplicate && c.New.Copies == 2 && c.count() == 1 }},
		{"the reordering", []string{"udp: false", "udp: true"}, func(c Changes) bool {
			return c.New.Reorder == Reorder{true, true, 50 * time.Millisecond} && c.count() == 1
		}},
		{"the queue", []string{"queue: 3ms", "queue: 0s"}, func(c Changes) bool { return c.New.Queue == 0 && c.count() == 1 }},
		{"the mtu", []string{"mtu: 1400\n", ""}, func(c Changes) bool { return c.New.MTUBytes == 0 && c.count() == 1 }},

		{"the name", []string{"name: office", "name: other"}, refused("name can't change from office to other without a restart: another name is another tunnel")},
		{"the device", []string{"cleat0", "cleat1"}, refused("device can't change from cleat0 to cleat1 without a restart: connections and routes are tied to the device")},
		{"the metrics", []string{"/run/cleat/office.metrics", "127.0.0.1:9100"}, refused("metrics can't change from /run/cleat/office.metrics to 127.0.0.1:9100 without a restart: its socket is open already")},
		{"the peer", []string{bobPublic, strings.Repeat("B", 42) + "A="}, refused("key can't change from " + alicePublic + " with peer " + bobPublic + " to " + alicePublic + " with peer " + strings.Repeat("B", 42) + "A= without a restart: it would lock out an end that still has the old key")},
		{"the key's file alone", []string{"private: office.key", "private: etc/office.key"}, Changes.IsEmpty},
		{"the form with a key", []string{"form: auto", "form: native"}, Changes.IsEmpty},
		{"no key any more", []string{"key:\n  private: office.key\n  peer: " + bobPublic + "\n", ""}, refused("form can't change from native to auto without a restart: both ends have agreed on it",
			"key can't change from "+alicePublic+" with peer "+bobPublic+" to none without a restart: it would lock out an end that still has the old key")},
		{"the compat form", []string{"metrics:", "compat: {key: 7, sequence: false}\nmetrics:"}, refused("compat can't change from {sequence: true} to {key: 7, sequence: false} without a restart: the other end would not recognize the packets")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Compare(running(t), running(t, tt.replace...))
			if !tt.want(c) {
				t.Errorf("got %+v", c)
			}
			if c.IsEmpty() != (c.count() == 0) {
				t.Errorf("IsEmpty() = %t of %+v", c.IsEmpty(), c)
			}
		})
	}
}

// count returns the number of changes.
func (c Changes) count() int {
	n := len(c.PathsAdded) + len(c.PathsRemoved) + len(c.PathsChanged) + len(c.AddressesAdded) +
		len(c.AddressesRemoved) + len(c.RoutesAdded) + len(c.RoutesRemoved) + len(c.SourcesAdded) + len(c.SourcesRemoved) + len(c.Refused)
	for _, changed := range []bool{c.Old.Scheduler != c.New.Scheduler || c.Old.Copies != c.New.Copies, c.Old.Reorder != c.New.Reorder, c.Old.Queue != c.New.Queue, c.Old.MTUBytes != c.New.MTUBytes} {
		if changed {
			n++
		}
	}
	return n
}

// refused checks for exactly these refusals.
func refused(want ...string) func(Changes) bool {
	return func(c Changes) bool {
		var got []string
		for _, r := range c.Refused {
			got = append(got, r.String())
		}
		return slices.Equal(got, want) && c.count() == len(want)
	}
}

func TestCompareNamesNoPrivateKey(t *testing.T) {
	c := Compare(running(t), running(t, "key:\n  private: office.key\n  peer: "+bobPublic+"\n", ""))
	if text := fmt.Sprintf("%+v", c); strings.Contains(text, alicePrivate) {
		t.Error(text)
	}
}
