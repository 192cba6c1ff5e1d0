package link

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// BridgeSpec is a learning Ethernet switch (net/bridge/, CONFIG_BRIDGE). The
// kernel can't move a bridge between namespaces; Create creates it directly in
// the target's.
type BridgeSpec struct {
	Attrs
	VLANFiltering bool // forward by 802.1Q tag (CONFIG_BRIDGE_VLAN_FILTERING)
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
func (s BridgeSpec) Validate() error { return validate("bridge", s.params()) }

func (s *BridgeSpec) params() []field {
	return append(s.Attrs.params(), field{"vlan_filtering", unix.IFLA_BR_VLAN_FILTERING, bool8(&s.VLANFiltering)})
}

func (s BridgeSpec) create(m *creator) error {
	return m.newLink(request{kind: "bridge", attrs: s.Attrs, fields: s.params()}, noUnderlay)
}

// FilterBridge selects whether IPv4 and IPv6 packets that a bridge forwards pass netfilter's
// hooks as if they were routed (CONFIG_BRIDGE_NETFILTER), whatever the sysctls for all bridges
// say (br_netfilter_hooks.c). A kernel without bridge netfilter is a *Lack.
func (l *Link) FilterBridge(on bool) error {
	value := []byte{0}
	if on {
		value[0] = 1
	}
	err := l.setBridge(attribute{Type: unix.IFLA_BR_NF_CALL_IPTABLES, Data: value}, attribute{Type: unix.IFLA_BR_NF_CALL_IP6TABLES, Data: value})
	if err != nil {
		return fmt.Errorf("filter packets of bridge %q: %w", l.Name(), err)
	}
	return nil
}

// FilterVLANs makes a bridge forward by 802.1Q tag. Its ports stay in the default VLAN.
func (l *Link) FilterVLANs() error {
	if err := l.setBridge(attribute{Type: unix.IFLA_BR_VLAN_FILTERING, Data: []byte{1}}); err != nil {
		return fmt.Errorf("filter VLANs of bridge %q: %w", l.Name(), err)
	}
	return nil
}

// SnoopMulticast selects whether a bridge learns from IGMP and MLD which ports want which group. Without a
// querier it sends every group to all ports either way (br_handle_frame_finish, net/bridge/br_input.c). But
// whenever a port comes or goes, the kernel looks at the groups of all ports (br_port_state_selection,
// net/bridge/br_stp.c), which takes about 0.3 µs for each.
func (l *Link) SnoopMulticast(on bool) error {
	value := []byte{0}
	if on {
		value[0] = 1
	}
	if err := l.setBridge(attribute{Type: unix.IFLA_BR_MCAST_SNOOPING, Data: value}); err != nil {
		return fmt.Errorf("snoop multicast on bridge %q: %w", l.Name(), err)
	}
	return nil
}

// setBridge changes properties of a bridge.
func (l *Link) setBridge(properties ...attribute) error {
	at := l.current()
	r, err := dial(at.ns)
	if err != nil {
		return err
	}
	defer r.Close()
	data, err := nest(unix.IFLA_INFO_DATA, properties)
	if err != nil {
		return err
	}
	info, err := nest(unix.IFLA_LINKINFO, []attribute{stringAttr(unix.IFLA_INFO_KIND, "bridge"), data})
	if err != nil {
		return err
	}
	_, err = r.execute(unix.RTM_NEWLINK, unix.NLM_F_ACK, ifinfo(unix.AF_UNSPEC, at.index), []attribute{info})
	return err
}
