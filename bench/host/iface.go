package host

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"cleat/bench/cell"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Interface is one link of the namespace the Host was read in. Addresses are
// counted, not kept.
type Interface struct {
	Name         string          `json:"name"`
	Index        int             `json:"index"`
	Kind         string          `json:"kind"`             // as the kernel calls it; "loopback"; "device" for hardware
	Driver       string          `json:"driver,omitempty"` // as ethtool -i says
	SpeedMbit    int             `json:"speed_mbit,omitempty"`
	MTU          int             `json:"mtu"`
	Up           bool            `json:"up"`
	Carrier      bool            `json:"carrier"`
	Qdisc        string          `json:"qdisc,omitempty"`
	TxQueueLen   int             `json:"txqueuelen"`
	TxQueues     int             `json:"tx_queues,omitempty"`
	RxQueues     int             `json:"rx_queues,omitempty"`
	Offloads     map[string]bool `json:"offloads,omitempty"` // by the kernel's names; absent: the device has no such switch
	Fixed        []string        `json:"offloads_fixed,omitempty"`
	Promiscuity  int             `json:"promiscuity"`      // how many users want every packet
	AllMulti     int             `json:"all_multi"`        // how many users want every multicast
	Master       string          `json:"master,omitempty"` // the bridge or bond it is a port of
	MasterKind   string          `json:"master_kind,omitempty"`
	Parent       string          `json:"parent,omitempty"` // what it sits on, when that is in the same namespace
	Addresses    int             `json:"addresses"`        // IPv4 ones
	DefaultRoute bool            `json:"default_route"`    // an IPv4 default route leaves by it
	RPFilter     string          `json:"rp_filter,omitempty"`
	RPS          bool            `json:"rps"` // receive packet steering is on for a queue
	XPS          bool            `json:"xps"` // transmit packet steering is on for a queue
	Counters     Counters        `json:"counters"`
	VXLAN        *VXLAN          `json:"vxlan,omitempty"`
}

// Counters are what a link has lost since it was made.
type Counters struct {
	RxPackets uint64 `json:"rx_packets"`
	TxPackets uint64 `json:"tx_packets"`
	RxErrors  uint64 `json:"rx_errors"`
	TxErrors  uint64 `json:"tx_errors"`
	RxDropped uint64 `json:"rx_dropped"`
	TxDropped uint64 `json:"tx_dropped"`
}

// VXLAN is what matters of a VXLAN device's settings.
type VXLAN struct {
	Port        int  `json:"port"`
	UDPChecksum bool `json:"udp_checksum"`
}

// kernel names of the offloads that Host keeps (net/ethtool/common.c,
// netdev_features_strings).
var offloads = []string{
	"rx-checksum", "tx-checksum-ipv4", "tx-checksum-ipv6", "tx-checksum-ip-generic", "tx-checksum-sctp",
	"tx-scatter-gather", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-udp-segmentation", "tx-generic-segmentation", "tx-gso-list", "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation",
	"tx-gre-segmentation", "tx-vlan-hw-insert", "rx-vlan-hw-parse", "rx-gro", "rx-gro-list", "rx-gro-hw", "rx-udp-gro-forwarding",
	"rx-lro", "rx-hashing", "rx-ntuple-filter", "hw-tc-offload", "esp-hw-offload", "highdma",
}

// interfaces reads the links of the calling thread's namespace.
func interfaces(f *files) []Interface {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		f.deny("interfaces: " + err.Error())
		return nil
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		f.deny("interfaces: " + err.Error())
		return nil
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		f.deny("ethtool: " + err.Error())
		tool = nil
	} else {
		defer tool.Close()
	}
	return describe(f, h, tool, links)
}

// describe turns the kernel's links into Interfaces. tool may be nil.
func describe(f *files, h *netlink.Handle, tool *ethtool.Ethtool, links []netlink.Link) []Interface {
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	roots := rootQdiscs(h)
	defaults := defaultRoutes(h)
	var out []Interface
	for _, l := range links {
		i := fromLink(l)
		a := l.Attrs()
		i.Qdisc = roots[a.Index]
		i.DefaultRoute = defaults[a.Index]
		if m := byIndex[a.MasterIndex]; m != nil {
			i.Master, i.MasterKind = m.Attrs().Name, m.Type()
		}
		if p := byIndex[a.ParentIndex]; p != nil && a.NetNsID < 0 && a.ParentIndex != a.Index {
			i.Parent = p.Attrs().Name
		}
		if addrs, err := h.AddrList(l, unix.AF_INET); err == nil {
			i.Addresses = len(addrs)
		}
		i.RPFilter = f.read("proc/sys/net/ipv4/conf/" + i.Name + "/rp_filter")
		steering(f, &i, a.HardwareAddr)
		if tool != nil {
			ask(tool, &i)
		}
		out = append(out, i)
	}
	return out
}

// fromLink takes over what netlink says by itself.
func fromLink(l netlink.Link) Interface {
	a := l.Attrs()
	i := Interface{
		Name: a.Name, Index: a.Index, Kind: l.Type(), MTU: a.MTU,
		Up:         a.Flags&net.FlagUp != 0,
		Carrier:    a.RawFlags&unix.IFF_LOWER_UP != 0,
		TxQueueLen: a.TxQLen, TxQueues: a.NumTxQueues, RxQueues: a.NumRxQueues,
		Promiscuity: a.Promisc, AllMulti: a.Allmulti,
	}
	if a.Flags&net.FlagLoopback != 0 {
		i.Kind = "loopback"
	}
	if s := a.Statistics; s != nil {
		i.Counters = Counters{s.RxPackets, s.TxPackets, s.RxErrors, s.TxErrors, s.RxDropped, s.TxDropped}
	}
	if v, ok := l.(*netlink.Vxlan); ok {
		i.VXLAN = &VXLAN{Port: v.Port, UDPChecksum: v.UDPCSum}
	}
	return i
}

// rootQdiscs names the queueing discipline of each link, by index.
func rootQdiscs(h *netlink.Handle) map[int]string {
	out := map[int]string{}
	qdiscs, err := h.QdiscList(nil)
	if err != nil {
		return out
	}
	for _, q := range qdiscs {
		if a := q.Attrs(); a.Parent == netlink.HANDLE_ROOT {
			out[a.LinkIndex] = q.Type()
		}
	}
	return out
}

// defaultRoutes tells which links carry an IPv4 default route.
func defaultRoutes(h *netlink.Handle) map[int]bool {
	out := map[int]bool{}
	routes, err := h.RouteList(nil, unix.AF_INET)
	if err != nil {
		return out
	}
	for _, r := range routes {
		if ones, _ := maskOf(r.Dst); ones != 0 {
			continue
		}
		out[r.LinkIndex] = true
		for _, n := range r.MultiPath {
			out[n.LinkIndex] = true
		}
	}
	delete(out, 0)
	return out
}

func maskOf(n *net.IPNet) (ones, bits int) {
	if n == nil {
		return 0, 0
	}
	return n.Mask.Size()
}

// steering reads RPS and XPS masks from /sys, if what /sys shows under this name
// is the same link: it may belong to another namespace.
func steering(f *files, i *Interface, mac net.HardwareAddr) {
	dir := "sys/class/net/" + i.Name + "/"
	index, ok := f.number(dir + "ifindex")
	if !ok || int(index) != i.Index || len(mac) > 0 && f.read(dir+"address") != mac.String() {
		return
	}
	for _, q := range f.list(dir + "queues") {
		i.RPS = i.RPS || nonZeroMask(f.read(dir+"queues/"+q+"/rps_cpus"))
		i.XPS = i.XPS || nonZeroMask(f.read(dir+"queues/"+q+"/xps_cpus"))
	}
}

// nonZeroMask tells whether a mask such as "00000000,00000003" has any bit.
func nonZeroMask(s string) bool { return strings.Trim(s, "0,") != "" }

// ask fills in what only ethtool knows.
func ask(tool *ethtool.Ethtool, i *Interface) {
	if d, err := tool.DriverName(i.Name); err == nil {
		i.Driver = d
	}
	var cmd ethtool.EthtoolCmd
	if mbit, err := tool.CmdGet(&cmd, i.Name); err == nil && mbit != unknownSpeed {
		i.SpeedMbit = int(mbit)
	}
	features, err := tool.FeaturesWithState(i.Name)
	if err != nil {
		return
	}
	for _, name := range offloads {
		s, ok := features[name]
		if !ok || !s.Active && !s.Available {
			continue // the device can't do it
		}
		if i.Offloads == nil {
			i.Offloads = map[string]bool{}
		}
		i.Offloads[name] = s.Active
		if s.NeverChanged || !s.Available {
			i.Fixed = append(i.Fixed, name)
		}
	}
}

// unknownSpeed is SPEED_UNKNOWN (include/uapi/linux/ethtool.h).
const unknownSpeed = 1<<32 - 1

// offload tells whether any of the named offloads is there, and whether one of
// those is on.
func (i Interface) offload(names ...string) (has, on bool) {
	for _, n := range names {
		v, ok := i.Offloads[n]
		has, on = has || ok, on || v
	}
	return has, on
}

// offloadGroups are the switches people know (`ethtool -K DEV tso on`), and the
// kernel features behind each.
var offloadGroups = []struct {
	short    string
	features []string
}{
	{"tx", []string{"tx-checksum-ipv4", "tx-checksum-ipv6", "tx-checksum-ip-generic"}},
	{"rx", []string{"rx-checksum"}},
	{"sg", []string{"tx-scatter-gather"}},
	{"tso", []string{"tx-tcp-segmentation", "tx-tcp6-segmentation"}},
	{"gso", []string{"tx-generic-segmentation"}},
	{"gro", []string{"rx-gro"}},
}

// Netfilter is what could look at packets. Rule sets are readable by root only.
type Netfilter struct {
	// Legacy are the tables that the old iptables has loaded, with their number
	// of rules; -1 when they can't be counted.
	Legacy map[string]int `json:"iptables_legacy,omitempty"`
	// NFT are the nftables tables ("ip filter"), with their number of rules.
	// The new iptables (iptables-nft) keeps its rules here too.
	NFT map[string]int `json:"nftables,omitempty"`
}

// total counts rules; tables that can't be counted count as one.
func total(tables map[string]int) int {
	n := 0
	for _, rules := range tables {
		if rules < 0 {
			rules = 1
		}
		n += rules
	}
	return n
}

// names lists tables with their numbers of rules.
func tableNames(tables map[string]int) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		if tables[name] < 0 {
			out = append(out, name)
			continue
		}
		out = append(out, fmt.Sprintf("%s (%s)", name, cell.Plural(tables[name], "rule")))
	}
	return strings.Join(out, ", ")
}
