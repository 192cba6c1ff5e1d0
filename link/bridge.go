package link

import (
	"time"

	"golang.org/x/sys/unix"
)

// BridgeSpec is a learning Ethernet switch (net/bridge/). A Target other than
// where it is made puts it straight there: a bridge can't be moved.
type BridgeSpec struct {
	Attrs
	VLANFiltering   bool          // forward by 802.1Q tag (needs CONFIG_BRIDGE_VLAN_FILTERING)
	VLANProtocol    VLANProtocol  // "": 802.1Q; needs VLANFiltering
	VLANDefaultPVID int           // of new ports; 0: the kernel's default, 1; -1: none
	VLANStats       bool          // count per VLAN
	STP             bool          // the kernel's 802.1D spanning tree
	ForwardDelay    time.Duration // in 10 ms; 0: the kernel's default, 15 s; STP wants 2 s…30 s
	HelloTime       time.Duration // in 10 ms, 1 s…10 s; 0: the kernel's default, 2 s
	MaxAge          time.Duration // in 10 ms, 6 s…40 s; 0: the kernel's default, 20 s
	Priority        int           // of the spanning tree; 0: the kernel's default, 0x8000
	AgeingTime      time.Duration // of learnt addresses, in 10 ms; 0: the kernel's default, 300 s; negative: forget at once, flooding everything
	GroupFwdMask    int           // which of 01:80:c2:00:00:0X to forward, by bit; not 0, 1 and 2
	GroupAddress    MAC           // of spanning tree frames; zero: 01:80:c2:00:00:00
	McastSnooping   Toggle        // the kernel's default is on
	McastQuerier    bool          // send IGMP and MLD queries
	FDBMaxLearned   int           // 0: no limit (Linux 6.7)
	NFCallIPTables  bool          // this bridge's IPv4 through netfilter, whatever the namespace's sysctl says
	NFCallIP6Tables bool          // the same for IPv6
	NFCallARPTables bool          // the same for ARP
}

// Kind implements Spec: a VLAN-filtering bridge is a kind of its own, because
// it needs a kernel option of its own.
func (s BridgeSpec) Kind() string {
	if s.VLANFiltering {
		return "bridge-vlan"
	}
	return "bridge"
}

// Validate implements Spec.
func (s BridgeSpec) Validate() error {
	if err := checkValues("bridge", s.params()); err != nil {
		return err
	}
	switch {
	case s.GroupFwdMask&7 != 0:
		return paramError("bridge", "group_fwd_mask", s.GroupFwdMask, "bits 3…15: 0, 1 and 2 are reserved (802.1D)")
	case s.VLANProtocol != "" && !s.VLANFiltering:
		return paramError("bridge", "vlan_protocol", s.VLANProtocol, "none without vlan_filtering")
	case s.GroupAddress != MAC{} && (s.GroupAddress[5]&^0xf != 0 || [5]byte(s.GroupAddress[:5]) != [5]byte{0x01, 0x80, 0xc2}):
		return paramError("bridge", "group_address", s.GroupAddress, "01:80:c2:00:00:0X")
	}
	return nil
}

func (s *BridgeSpec) params() []field { return append(s.Attrs.params(), s.fields()...) }

// clockTick is the unit of the bridge's times: USER_HZ is 100 on every
// architecture of ours.
const clockTick = 10 * time.Millisecond

func (s *BridgeSpec) fields() []field {
	ticks := func(p *time.Duration) period { return period{p: p, unit: clockTick, max: 1 << 24 * clockTick} }
	ageing := ticks(&s.AgeingTime)
	ageing.none = true
	return []field{
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
		{"mcast_snooping", unix.IFLA_BR_MCAST_SNOOPING, toggle8(&s.McastSnooping)},
		{"mcast_querier", unix.IFLA_BR_MCAST_QUERIER, bool8(&s.McastQuerier)},
		{"fdb_max_learned", unix.IFLA_BR_FDB_MAX_LEARNED, u32(&s.FDBMaxLearned)},
		{"nf_call_iptables", unix.IFLA_BR_NF_CALL_IPTABLES, bool8(&s.NFCallIPTables)},
		{"nf_call_ip6tables", unix.IFLA_BR_NF_CALL_IP6TABLES, bool8(&s.NFCallIP6Tables)},
		{"nf_call_arptables", unix.IFLA_BR_NF_CALL_ARPTABLES, bool8(&s.NFCallARPTables)},
	}
}

func (s BridgeSpec) create(m *creator) error {
	return m.newLink(request{kind: "bridge", attrs: s.Attrs, fields: s.fields()}, noUnderlay)
}

func (s BridgeSpec) read(r *reader) (Spec, error) {
	var got BridgeSpec
	err := r.into(&got.Attrs, got.fields())
	return got, err
}
