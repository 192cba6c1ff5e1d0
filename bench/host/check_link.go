package host

import (
	"fmt"
	"slices"
	"strings"

	terminal "cleat/internal/columns"
)

var linkChecks = []check{
	{"mtu", checkMTU},
	{"offloads", checkOffloads},
	{"promiscuous", checkPromiscuous},
	{"shaping", checkShaping},
	{"drops", checkDrops},
	{"vxlan", checkVXLAN},
	{"packet-steering", checkSteering},
}

// checkMTU compares the MTU of each bridge with those of its ports and of the uplink, and that of
// each VXLAN device with its underlay's.
func checkMTU(h Host) []Finding {
	uplink := slices.IndexFunc(h.Interfaces, func(i Interface) bool { return i.DefaultRoute })
	var out []Finding
	bridges := 0
	for _, br := range h.Interfaces {
		if br.Kind != "bridge" {
			continue
		}
		bridges++
		out = append(out, portMTUs(h, br)...)
		if uplink >= 0 && br.Addresses > 0 && h.Interfaces[uplink].Name != br.Name && h.Interfaces[uplink].MTU < br.MTU {
			up := h.Interfaces[uplink]
			out = append(out, Finding{Severity: Warning, Spoils: SpoilsNetwork,
				Title:  fmt.Sprintf("bridge %s has MTU %d, the uplink %s only %d", br.Name, br.MTU, up.Name, up.MTU),
				Detail: "Containers send full-size packets that do not fit the uplink. TCP recovers if ICMP gets through; if a firewall drops it, connections open and then hang.",
				Fix:    fmt.Sprintf("sudo ip link set dev %s mtu %d", terminal.Word(br.Name), up.MTU)})
		}
	}
	for _, i := range h.Interfaces {
		p := slices.IndexFunc(h.Interfaces, func(p Interface) bool { return p.Name == i.Parent })
		if i.Kind != "vxlan" || p < 0 || i.MTU+vxlanOverhead <= h.Interfaces[p].MTU {
			continue
		}
		out = append(out, Finding{Severity: Warning, Spoils: SpoilsNetwork,
			Title:  fmt.Sprintf("VXLAN %s has MTU %d, which does not fit into the %d of %s", i.Name, i.MTU, h.Interfaces[p].MTU, i.Parent),
			Detail: fmt.Sprintf("The headers take %d bytes: large packets are fragmented or lost.", vxlanOverhead),
			Fix:    fmt.Sprintf("sudo ip link set dev %s mtu %d", terminal.Word(i.Name), h.Interfaces[p].MTU-vxlanOverhead)})
	}
	if len(out) == 0 && bridges > 0 {
		return fine("the MTUs of bridges, ports and uplink agree")
	}
	return out
}

// vxlanOverhead is IPv4, UDP, VXLAN and the inner Ethernet header, in bytes
// (RFC 7348 section 5).
const vxlanOverhead = 20 + 8 + 8 + 14

// portMTUs finds ports with different MTUs. A bridge drops a frame that does not fit the port it
// leaves by, and sends no ICMP, because it does not route.
func portMTUs(h Host, br Interface) []Finding {
	var members []Interface
	if br.Addresses > 0 {
		members = append(members, br) // its own stack sends and receives, too
	}
	largest := 0
	for _, p := range h.Interfaces {
		if p.Master == br.Name {
			members = append(members, p)
			largest = max(largest, p.MTU)
		}
	}
	var smaller []string
	var fix []string
	for _, m := range members {
		if m.MTU < largest {
			smaller = append(smaller, fmt.Sprintf("%s %d", m.Name, m.MTU))
			fix = append(fix, fmt.Sprintf("sudo ip link set dev %s mtu %d", terminal.Word(m.Name), largest))
		}
	}
	if len(smaller) == 0 {
		return nil
	}
	return one(Finding{Severity: Problem, Spoils: SpoilsBoth,
		Title:  fmt.Sprintf("bridge %s mixes MTUs: up to %d, but %s", br.Name, largest, strings.Join(smaller, ", ")),
		Detail: "The bridge silently drops frames that are too large for the port they leave by: pings and handshakes work, data does not.",
		Fix:    strings.Join(fix, "; ")})
}

// checkOffloads finds offloads that are off but could be on, on devices that carry traffic.
func checkOffloads(h Host) []Finding {
	var out []Finding
	seen := false
	for _, i := range h.Interfaces {
		if !i.Up || !slices.Contains([]string{"device", "veth", "loopback"}, i.Kind) || i.Offloads == nil {
			continue
		}
		seen = true
		var off []string
		for _, g := range offloadGroups {
			has, on := i.offload(g.features...)
			if i.Kind == "veth" && g.short == "gro" {
				continue // off by default: it needs XDP or NAPI (drivers/net/veth.c)
			}
			if has && !on && !i.fixed(g.features...) {
				off = append(off, g.short)
			}
		}
		if len(off) > 0 {
			out = append(out, Finding{Severity: Warning, Spoils: SpoilsBoth,
				Title:  fmt.Sprintf("offloads are off on %s: %s", i.Name, strings.Join(off, ", ")),
				Detail: "The kernel handles each 1500-byte packet separately instead of up to 64 KiB at once, or computes checksums in software: several times the CPU time per Gbit/s.",
				Fix:    fmt.Sprintf("sudo ethtool -K %s %s on", terminal.Word(i.Name), strings.Join(off, " on "))})
		}
	}
	if seen && len(out) == 0 {
		return fine("no offload is switched off")
	}
	return out
}

// fixed reports whether none of the named features can be changed.
func (i Interface) fixed(names ...string) bool {
	for _, n := range names {
		if _, has := i.Offloads[n]; has && !slices.Contains(i.Fixed, n) {
			return false
		}
	}
	return true
}

// checkPromiscuous finds NICs that pass every frame up. It can't count macvlan devices that were
// moved into containers.
func checkPromiscuous(h Host) []Finding {
	var out []Finding
	seen := false
	for _, i := range h.Interfaces {
		if i.Kind != "device" {
			continue
		}
		seen = true
		if i.Promiscuity == 0 || i.MasterKind == "bridge" || i.MasterKind == "openvswitch" {
			continue // ports of a switch have to be promiscuous
		}
		children := 0
		for _, c := range h.Interfaces {
			if c.Parent == i.Name && (c.Kind == "macvlan" || c.Kind == "macvtap") {
				children++
			}
		}
		out = append(out, Finding{Severity: Warning, Spoils: SpoilsBoth,
			Title: fmt.Sprintf("%s is promiscuous", i.Name),
			Detail: fmt.Sprintf("Every frame on the wire costs CPU time here, whatever its destination. Causes: more MAC addresses than the NIC's filter holds (macvlan: one per container; %d on %s are visible from here), a macvlan in mode passthru, or a sniffer.",
				children, i.Name),
			Fix: fmt.Sprintf("ip -details link show dev %s; bridge fdb show dev %s; sudo lsof 2>/dev/null | grep -w pack", terminal.Word(i.Name), terminal.Word(i.Name))})
	}
	if seen && len(out) == 0 {
		return fine("no NIC is promiscuous without need")
	}
	return out
}

// shapers are queueing disciplines that limit a rate, or add delay or loss.
var shapers = []string{"tbf", "htb", "hfsc", "cbq", "netem", "cake", "etf", "taprio"}

func checkShaping(h Host) []Finding {
	var out []Finding
	for _, i := range h.Interfaces {
		if i.Up && slices.Contains(shapers, i.Qdisc) {
			out = append(out, Finding{Severity: Warning, Spoils: SpoilsBoth, Title: fmt.Sprintf("%s is shaped by %s", i.Name, i.Qdisc),
				Detail: "Its rate, delay or loss is the shaper's, not the device's.",
				Fix:    "tc -s qdisc show dev " + i.Name})
		}
	}
	return out
}

// notableDrops is the share of lost packets from which TCP slows down notably.
const notableDrops = 1e-3

func checkDrops(h Host) []Finding {
	var out []Finding
	for _, i := range h.Interfaces {
		c := i.Counters
		for _, d := range []struct {
			direction     string
			lost, packets uint64
		}{
			{"receiving", c.RxErrors + c.RxDropped, c.RxPackets},
			{"sending", c.TxErrors + c.TxDropped, c.TxPackets},
		} {
			if d.lost < 10 || float64(d.lost) < notableDrops*float64(d.lost+d.packets) {
				continue
			}
			out = append(out, Finding{Severity: Note, Spoils: SpoilsBoth,
				Title:  fmt.Sprintf("%s lost %d packets %s, of %d", i.Name, d.lost, d.direction, d.lost+d.packets),
				Detail: "The counters run since the link was created. Check whether they still increase.",
				Fix:    "ip -statistics -statistics link show dev " + i.Name})
		}
	}
	return out
}

func checkVXLAN(h Host) []Finding {
	var out []Finding
	for _, i := range h.Interfaces {
		if i.VXLAN == nil {
			continue
		}
		p := slices.IndexFunc(h.Interfaces, func(p Interface) bool { return p.Name == i.Parent })
		if p >= 0 && h.Interfaces[p].Kind == "device" {
			if _, tnl := h.Interfaces[p].offload("tx-udp_tnl-segmentation"); !tnl {
				out = append(out, Finding{Severity: Note, Spoils: SpoilsMeasurement,
					Title:  fmt.Sprintf("%s can't segment inside VXLAN: the kernel does it in software for %s", i.Parent, i.Name),
					Detail: "The NIC offers no tx-udp_tnl-segmentation: overlays cost more CPU on it than plain traffic does."})
			}
		}
		if !i.VXLAN.UDPChecksum {
			out = append(out, Finding{Severity: Note, Spoils: SpoilsMeasurement,
				Title:  fmt.Sprintf("VXLAN %s sends without outer UDP checksums", i.Name),
				Detail: "That saves no work if the inner checksum is offloaded, and a receiver whose NIC did not verify the inner one can't merge packets (GRO)."})
		}
		if _, csum := i.offload("tx-checksum-ip-generic"); csum {
			out = append(out, Finding{Severity: Note, Spoils: SpoilsNetwork,
				Title:  fmt.Sprintf("VXLAN %s leaves checksums to the underlying hardware", i.Name),
				Detail: "Some drivers and kernels before 5.7 compute them wrong after NAT: connections through the overlay then hang for a minute. If that happens, switch the offload off.",
				Fix:    fmt.Sprintf("sudo ethtool -K %s tx-checksum-ip-generic off", i.Name)})
		}
	}
	return out
}

func checkSteering(h Host) []Finding {
	var on []string
	for _, i := range h.Interfaces {
		if i.RPS {
			on = append(on, i.Name)
		}
	}
	if len(on) == 0 {
		return nil
	}
	return one(Finding{Severity: Note, Spoils: SpoilsMeasurement, Title: "received packets are spread over CPUs (RPS) on " + strings.Join(on, ", "),
		Detail: "Softirq work moves to other CPUs than the receiver's: more throughput for many streams, more CPU time and latency for one.",
		Fix:    "grep . /sys/class/net/*/queues/rx-*/rps_cpus"})
}
