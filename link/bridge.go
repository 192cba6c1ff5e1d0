package link

import (
	"time"

	"golang.org/x/sys/unix"
)

// BridgeSpec is a learning Ethernet switch (net/bridge/, CONFIG_BRIDGE). The
// kernel can't move a bridge between namespaces; Create creates it directly in
// the target's.
type BridgeSpec struct {
	Attrs
	VLANFiltering   bool          // forward by 802.1Q tag (CONFIG_BRIDGE_VLAN_FILTERING)
	VLANProtocol    VLANProtocol  // "": 802.1Q; needs VLANFiltering
	VLANDefaultPVID int           // of new ports; 0: the kernel's default, 1; -1: none
	VLANStats       bool          // count packets per VLAN
	STP             bool          // the kernel's 802.1D spanning tree
	ForwardDelay    time.Duration // in steps of 10 ms; with STP 2 s…30 s; 0: the kernel's default, 15 s
	HelloTime       time.Duration // in steps of 10 ms, 1 s…10 s; 0: the kernel's default, 2 s
	MaxAge          time.Duration // in steps of 10 ms, 6 s…40 s; 0: the kernel's default, 20 s
	Priority        int           // of the spanning tree; 0: the kernel's default, 0x8000
	AgeingTime      time.Duration // of learnt addresses, in steps of 10 ms; 0: the kernel's default, 300 s; negative: forget at once, which floods all frames
	GroupFwdMask    int           // bit X: forward frames to 01:80:c2:00:00:0X; not bits 0, 1 and 2
	GroupAddress    MAC           // destination of spanning tree frames; zero: 01:80:c2:00:00:00
	McastSnooping   Toggle        // the kernel's default is on
	McastQuerier    bool          // send IGMP and MLD queries
	FDBMaxLearned   int           // limit of learnt addresses; 0: no limit (Linux 6.7)
	NFCallIPTables  bool          // pass IPv4 through netfilter, regardless of the namespace's sysctl
	NFCallIP6Tables bool          // the same for IPv6
	NFCallARPTables bool          // the same for ARP
}

// Kind implements Spec. A VLAN-filtering bridge is a separate kind, because it
// needs a separate kernel option.
func (s BridgeSpec) Kind() string {
	if s.VLANFiltering {
		return "bridge-vlan"
	}
	return "bridge"
}

// Validate implements Spec.
func (s BridgeSpec) Validate() error {
	return validate("bridge", s.params(),
		rule{s.GroupFwdMask&7 != 0, "group_fwd_mask", "bits 3…15: 0, 1 and 2 are reserved (802.1D)"},
		rule{s.VLANProtocol != "" && !s.VLANFiltering, "vlan_protocol", "none without vlan_filtering"},
		rule{s.GroupAddress != MAC{} && (s.GroupAddress[5]&^0xf != 0 || [5]byte(s.GroupAddress[:5]) != [5]byte{0x01, 0x80, 0xc2}), "group_address", "01:80:c2:00:00:0X"},
	)
}

// clockTick is the unit of the bridge's times, 1/USER_HZ. USER_HZ is 100 on every
// architecture that Cleat supports.
const clockTick = 10 * time.Millisecond

func (s *BridgeSpec) params() []field {
	ticks := func(p *time.Duration) period { return period{p: p, unit: clockTick, max: 1 << 24 * clockTick} }
	ageing := ticks(&s.AgeingTime)
	ageing.none = true
	return append(s.Attrs.params(), []field{
		{"vlan_filtering", unix.IFLA_BR_VLAN_FILTERING, bool8(&s.VLANFiltering)},
		{"vlan_protocol", unix.IFLA_BR_VLAN_PROTOCOL, vlanProtocol(&s.VLANProtocol)},
		{"vlan_default_pvid", unix.IFLA_BR_VLAN_DEFAULT_PVID, u16(&s.VLANDefaultPVID).between(1, 4094).orNone()},
		{"vlan_stats_enabled", unix.IFLA_BR_VLAN_STATS_ENABLED, bool8(&s.VLANStats)},
		{"stp_state", unix.IFLA_BR_STP_STATE, bool32(&s.STP)},
		{"forward_delay", unix.IFLA_BR_FORWARD_DELAY, ticks(&s.ForwardDelay)},
		{"hello_time", unix.IFLA_BR_HELLO_TIME, ticks(&s.HelloTime)},
		{"max_age", unix.IFLA_BR_MAX_AGE, ticks(&s.MaxAge)},
		{"priority", unix.IFLA_BR_PRIORITY, u16(&s.Priority)},
		{"ageing_time", unix.IFLA_BR_AGEING_TIME, ageing},
		{"group_fwd_mask", unix.IFLA_BR_GROUP_FWD_MASK, u16(&s.GroupFwdMask)},
		{"group_address", unix.IFLA_BR_GROUP_ADDR, hardware{p: &s.GroupAddress, group: true}},
		{"mcast_snooping", unix.IFLA_BR_MCAST_SNOOPING, toggle{&s.McastSnooping}},
		{"mcast_querier", unix.IFLA_BR_MCAST_QUERIER, bool8(&s.McastQuerier)},
		{"fdb_max_learned", unix.IFLA_BR_FDB_MAX_LEARNED, u32(&s.FDBMaxLearned)},
		{"nf_call_iptables", unix.IFLA_BR_NF_CALL_IPTABLES, bool8(&s.NFCallIPTables)},
		{"nf_call_ip6tables", unix.IFLA_BR_NF_CALL_IP6TABLES, bool8(&s.NFCallIP6Tables)},
		{"nf_call_arptables", unix.IFLA_BR_NF_CALL_ARPTABLES, bool8(&s.NFCallARPTables)},
	}...)
}

func (s BridgeSpec) create(m *creator) error {
	return m.newLink(request{kind: "bridge", attrs: s.Attrs, fields: s.params()}, noUnderlay)
}
