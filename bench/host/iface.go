package host

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"cleat/internal/columns"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Interface is a link of the network namespace that the Host was read in. Its addresses are
// counted, but not kept.
type Interface struct {
	Name         string          `json:"name"`
	Index        int             `json:"index"`
	Kind         string          `json:"kind"`             // the kernel's name; "loopback"; "device" for hardware
	Driver       string          `json:"driver,omitempty"` // as in ethtool -i
	SpeedMbit    int             `json:"speed_mbit,omitempty"`
	MTU          int             `json:"mtu"`
	Up           bool            `json:"up"`
	Carrier      bool            `json:"carrier"`
	Qdisc        string          `json:"qdisc,omitempty"`
	TxQueueLen   int             `json:"txqueuelen"`
	TxQueues     int             `json:"tx_queues,omitempty"`
	RxQueues     int             `json:"rx_queues,omitempty"`
	Offloads     map[string]bool `json:"offloads,omitempty"` // by kernel name; absent if the device has no such switch
	Fixed        []string        `json:"offloads_fixed,omitempty"`
	Promiscuity  int             `json:"promiscuity"`      // number of users that receive every packet
	AllMulti     int             `json:"all_multi"`        // number of users that receive every multicast
	Master       string          `json:"master,omitempty"` // the bridge or bond that it is a port of
	MasterKind   string          `json:"master_kind,omitempty"`
	Parent       string          `json:"parent,omitempty"` // the link below it, if that is in the same namespace
	Addresses    int             `json:"addresses"`        // IPv4 ones
	DefaultRoute bool            `json:"default_route"`    // an IPv4 default route leaves by it
	RPFilter     string          `json:"rp_filter,omitempty"`
	RPS          bool            `json:"rps"` // a queue has receive packet steering
	XPS          bool            `json:"xps"` // a queue has transmit packet steering
	Counters     Counters        `json:"counters"`
	VXLAN        *VXLAN          `json:"vxlan,omitempty"`
}

// Counters are packets since the link was created.
type Counters struct {
	RxPackets uint64 `json:"rx_packets"`
	TxPackets uint64 `json:"tx_packets"`
	RxErrors  uint64 `json:"rx_errors"`
	TxErrors  uint64 `json:"tx_errors"`
	RxDropped uint64 `json:"rx_dropped"`
	TxDropped uint64 `json:"tx_dropped"`
}

// VXLAN has the settings of a VXLAN device that matter.
type VXLAN struct {
	Port        int  `json:"port"`
	UDPChecksum bool `json:"udp_checksum"`
}

// offloads are the kernel names of the offloads that Host keeps (net/ethtool/common.c,
// netdev_features_strings).
var offloads = []string{
	"rx-checksum", "tx-checksum-ipv4", "tx-checksum-ipv6", "tx-checksum-ip-generic", "tx-checksum-sctp",
	"tx-scatter-gather", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-udp-segmentation", "tx-generic-segmentation", "tx-gso-list", "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation",
	"tx-gre-segmentation", "tx-vlan-hw-insert", "rx-vlan-hw-parse", "rx-gro", "rx-gro-list", "rx-gro-hw", "rx-udp-gro-forwarding",
	"rx-lro", "rx-hashing", "rx-ntuple-filter", "hw-tc-offload", "esp-hw-offload", "highdma",
}

// interfaces reads the links of the calling thread's network namespace.
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
	} else {
		defer tool.Close()
	}
	out := make([]Interface, len(links))
	at := map[int]*Interface{0: {}} // by index; 0 takes what belongs to no link
	for n, l := range links {
		out[n] = fromLink(l)
		at[l.Attrs().Index] = &out[n]
	}
	for n, l := range links {
		i, a := &out[n], l.Attrs()
		if m := at[a.MasterIndex]; m != nil {
			i.Master, i.MasterKind = m.Name, m.Kind
		}
		if p := at[a.ParentIndex]; p != nil && a.NetNsID < 0 && p != i {
			i.Parent = p.Name
		}
		i.RPFilter = f.read("proc/sys/net/ipv4/conf/" + i.Name + "/rp_filter")
		steering(f, i, a.HardwareAddr)
		if tool != nil {
			driver(tool, i)
		}
	}
	addresses, _ := h.AddrList(nil, unix.AF_INET)
	for _, a := range addresses {
		if i := at[a.LinkIndex]; i != nil {
			i.Addresses++
		}
	}
	qdiscs, _ := h.QdiscList(nil)
	for _, q := range qdiscs {
		if i := at[q.Attrs().LinkIndex]; i != nil && q.Attrs().Parent == netlink.HANDLE_ROOT {
			i.Qdisc = q.Type()
		}
	}
	routes, _ := h.RouteList(nil, unix.AF_INET)
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		for _, n := range append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: r.LinkIndex}) {
			if i := at[n.LinkIndex]; i != nil {
				i.DefaultRoute = true
			}
		}
	}
	return out
}

// fromLink converts what one netlink message says of a link.
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

// steering reads RPS and XPS masks from /sys. It checks that /sys shows the same link under this
// name: /sys may belong to another network namespace.
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

// nonZeroMask reports whether a mask such as "00000000,00000003" has any bit set.
func nonZeroMask(s string) bool { return strings.Trim(s, "0,") != "" }

// driver fills in what only ethtool reports.
func driver(tool *ethtool.Ethtool, i *Interface) {
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
			continue // the device does not have it
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

// offload reports whether the link has any of the named offloads, and whether any of them is on.
func (i Interface) offload(names ...string) (has, on bool) {
	for _, n := range names {
		v, ok := i.Offloads[n]
		has, on = has || ok, on || v
	}
	return has, on
}

// offloadGroups are the switches that people know (`ethtool -K DEV tso on`), and the kernel
// features behind each.
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

// Netfilter lists the firewall tables. Only root can read them.
type Netfilter struct {
	// Legacy has the tables that the old iptables has loaded, with their numbers of rules, or
	// -1 if these can't be counted.
	Legacy map[string]int `json:"iptables_legacy,omitempty"`
	// NFT has the nftables tables ("ip filter"), with their numbers of rules. The new iptables
	// (iptables-nft) keeps its rules here, too.
	NFT map[string]int `json:"nftables,omitempty"`
}

// total counts the rules of all tables. A table that can't be counted counts as one.
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

// tableNames lists tables with their numbers of rules.
func tableNames(tables map[string]int) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		if tables[name] >= 0 {
			name = fmt.Sprintf("%s (%s)", name, columns.Plural(tables[name], "rule"))
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}
