package host

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	terminal "cleat/internal/columns"
)

var kernelChecks = []check{
	{"bridge-netfilter", checkBridgeNetfilter},
	{"congestion", checkCongestion},
	{"conntrack", checkConntrack},
	{"rp-filter", checkRPFilter},
	{"firewalls", checkFirewalls},
	{"forwarding", checkForwarding},
	{"default-qdisc", checkDefaultQdisc},
	{"udp-buffers", checkUDPBuffers},
	{"kernel", checkKernelAge},
}

// number returns a sysctl that holds one integer.
func (h Host) number(sysctl string) (int, bool) {
	n, err := strconv.Atoi(h.Sysctls[sysctl])
	return n, err == nil
}

func checkBridgeNetfilter(h Host) []Finding {
	var on, off []string
	for _, name := range []string{"iptables", "ip6tables", "arptables"} {
		switch key := "net.bridge.bridge-nf-call-" + name; h.Sysctls[key] {
		case "1":
			on = append(on, key)
		case "0":
			off = append(off, key)
		}
	}
	switch {
	case len(on) == 0 && (len(off) > 0 || !h.Kernel.BridgeNetfilter):
		return fine("bridge netfilter is off")
	case len(on) == 0:
		return nil
	}
	f := Finding{Severity: Note, Spoils: SpoilsBoth, Title: "bridge netfilter is on, and will affect bridges that are added"}
	if slices.ContainsFunc(h.Interfaces, func(i Interface) bool { return i.Kind == "bridge" }) {
		f.Severity, f.Title = Warning, "bridge netfilter is on"
	}
	f.Detail = "Every frame between two ports of a bridge passes the host's IP firewall rules and connection tracking: slower, and a rule meant for routed traffic can drop it. " +
		"Docker (icc=false, hairpin to published ports) and Kubernetes rely on it: turn it off only where neither runs."
	f.Fix = "sudo sysctl " + strings.Join(on, "=0 ") + "=0"
	return one(f)
}

func checkCongestion(h Host) []Finding {
	switch cc := h.Sysctls["net.ipv4.tcp_congestion_control"]; {
	case cc == "":
		return nil
	case strings.HasPrefix(cc, "bbr"):
		return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement, Title: "the default congestion control is " + cc,
			Detail: "BBR paces every packet by a timer. On links without loss inside one machine that is all it does: loopback falls from 55 to 20 Gbit/s (2 vCPUs, kernel 6.18). New namespaces inherit it.",
			Fix:    "sudo sysctl net.ipv4.tcp_congestion_control=cubic"})
	default:
		return fine("the default congestion control is " + cc)
	}
}

func checkConntrack(h Host) []Finding {
	limit, ok1 := h.number("net.netfilter.nf_conntrack_max")
	count, ok2 := h.number("net.netfilter.nf_conntrack_count")
	if !ok1 || !ok2 || limit <= 0 {
		return nil
	}
	f := Finding{Spoils: SpoilsBoth,
		Title:  fmt.Sprintf("connection tracking holds %d of at most %d connections", count, limit),
		Detail: "When the table is full new connections are dropped (\"nf_conntrack: table full, dropping packet\" in the kernel log).",
		Fix:    fmt.Sprintf("sudo sysctl net.netfilter.nf_conntrack_max=%d", 2*limit)}
	switch used := float64(count) / float64(limit); {
	case used >= 0.9:
		f.Severity = Problem
	case used >= 0.7:
		f.Severity = Warning
	default:
		return fine("connection tracking has room")
	}
	return one(f)
}

// checkRPFilter warns if the strict filter (RFC 3704) is on and there are several ways out. The
// kernel takes the larger of the settings "all" and the interface's own.
func checkRPFilter(h Host) []Finding {
	all, ok := h.number("net.ipv4.conf.all.rp_filter")
	if !ok {
		return nil
	}
	var addressed, strict []string
	ways := 0
	for _, i := range h.Interfaces {
		if !i.Up || i.Addresses == 0 || i.Kind == "loopback" {
			continue
		}
		addressed = append(addressed, i.Name)
		if i.DefaultRoute {
			ways++
		}
		own, _ := strconv.Atoi(i.RPFilter)
		if max(all, own) == 1 {
			strict = append(strict, i.Name)
		}
	}
	f := Finding{Spoils: SpoilsNetwork,
		Title: "strict reverse path filtering on " + strings.Join(strict, ", "),
		Detail: fmt.Sprintf("%s have addresses: a packet is dropped silently if it arrives on another of them than its answer would leave by, "+
			"as with several uplinks, policy routing, MPTCP or tunnels.", strings.Join(addressed, ", ")),
		Fix: rpFilterFix(strict)}
	switch {
	case len(strict) == 0 || len(addressed) < 2:
		return fine("reverse path filtering is loose or harmless")
	case ways > 1:
		f.Severity = Warning
	default:
		f.Severity = Note
	}
	return one(f)
}

// rpFilterFix sets each interface to loose (2), which overrides a smaller value of "all".
func rpFilterFix(names []string) string {
	var b strings.Builder
	b.WriteString("sudo sysctl")
	for _, n := range names {
		// sysctl(8): a dot in a name is written as a slash.
		b.WriteString(" " + terminal.Word("net.ipv4.conf."+strings.ReplaceAll(n, ".", "/")+".rp_filter=2"))
	}
	return b.String()
}

func checkFirewalls(h Host) []Finding {
	legacy, nft := total(h.Netfilter.Legacy), total(h.Netfilter.NFT)
	switch {
	case legacy > 0 && nft > 0:
		return one(Finding{Severity: Warning, Spoils: SpoilsBoth, Title: "two firewalls: iptables-legacy and nftables both hold rules",
			Detail: fmt.Sprintf("legacy: %s; nftables: %s. A packet must pass both, and each tool shows only its own rules: one may drop what the other accepts. (The new iptables writes to nftables.)",
				tableNames(h.Netfilter.Legacy), tableNames(h.Netfilter.NFT)),
			Fix: "sudo iptables-legacy-save; sudo nft list ruleset"})
	case slices.ContainsFunc(h.Unreadable, func(s string) bool { return strings.Contains(s, "nftables") || strings.Contains(s, "tables_names") }):
		return nil // only root may read them
	case legacy+nft == 0:
		return fine("no firewall rules")
	}
	return fine("one firewall")
}

// checkForwarding warns if forwarding is off on a host that has a bridge for containers.
func checkForwarding(h Host) []Finding {
	forward, ok := h.number("net.ipv4.ip_forward")
	if !ok {
		return nil
	}
	i := slices.IndexFunc(h.Interfaces, func(i Interface) bool { return i.Kind == "bridge" && i.Up && i.Addresses > 0 })
	switch {
	case i < 0:
		return nil
	case forward != 0:
		return fine("IPv4 forwarding is on")
	}
	return one(Finding{Severity: Warning, Spoils: SpoilsNetwork, Title: "IPv4 forwarding is off",
		Detail: fmt.Sprintf("Containers on bridge %s reach each other and the host, but nothing outside.", h.Interfaces[i].Name),
		Fix:    "sudo sysctl net.ipv4.ip_forward=1"})
}

func checkDefaultQdisc(h Host) []Finding {
	switch q := h.Sysctls["net.core.default_qdisc"]; q {
	case "":
		return nil
	case "pfifo_fast", "pfifo", "bfifo":
		return one(Finding{Severity: Note, Spoils: SpoilsBoth, Title: "the default queueing discipline is " + q,
			Detail: "It is one long queue per device: a bulk transfer over a NIC or a shaped link delays everything else by the whole queue (1000 packets). Virtual devices such as veth have no queue.",
			Fix:    "sudo sysctl net.core.default_qdisc=fq_codel"})
	default:
		return fine("the default queueing discipline is " + q)
	}
}

// enoughUDPBuffer holds 10 ms of 3 Gbit/s, about what arrives while a receiver waits for a CPU.
const enoughUDPBuffer = 4 << 20

func checkUDPBuffers(h Host) []Finding {
	rmem, ok := h.number("net.core.rmem_max")
	if !ok {
		return nil
	}
	if rmem >= enoughUDPBuffer {
		return fine("UDP sockets may have large buffers")
	}
	return one(Finding{Severity: Note, Spoils: SpoilsBoth,
		Title:  fmt.Sprintf("UDP sockets may buffer at most %d KiB", rmem/1024),
		Detail: "Datagrams that arrive while the receiver waits for a CPU are dropped: that loss is the receiver's, not the network's.",
		Fix:    fmt.Sprintf("sudo sysctl net.core.rmem_max=%d net.core.wmem_max=%d", enoughUDPBuffer, enoughUDPBuffer)})
}

// kernelFeatures change what can be measured. Each has the first kernel version that has it.
var kernelFeatures = []struct {
	major, minor int
	name         string
}{
	{4, 18, "UDP_SEGMENT (datagrams sent in batches)"},
	{5, 0, "UDP_GRO (datagrams received in batches)"},
	{5, 6, "WireGuard and MPTCP"},
	{5, 16, "MPTCP that fails over by itself"},
	{5, 19, "packets above 64 KiB on IPv6 (BIG TCP)"},
	{6, 2, "UDP segmentation over TUN"},
	{6, 3, "packets above 64 KiB on IPv4 (BIG TCP)"},
	{6, 7, "netkit"},
}

func checkKernelAge(h Host) []Finding {
	var major, minor int // of a release such as "6.1.0-9-amd64"
	if _, err := fmt.Sscanf(h.Kernel.Release, "%d.%d", &major, &minor); err != nil {
		return nil
	}
	var missing []string
	for _, f := range kernelFeatures {
		if major < f.major || major == f.major && minor < f.minor {
			missing = append(missing, f.name)
		}
	}
	if len(missing) == 0 {
		return fine("kernel " + h.Kernel.Release + " has all known features")
	}
	return one(Finding{Severity: Note, Spoils: SpoilsNetwork, Title: fmt.Sprintf("kernel %d.%d lacks newer features", major, minor),
		Detail: "It has no " + strings.Join(missing, ", no ") + " (unless the distribution backported them)."})
}
