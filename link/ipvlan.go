package link

import "golang.org/x/sys/unix"

// IPvlanSpec is a device that has IP addresses of its own and shares its
// parent's Ethernet address (drivers/net/ipvlan/, CONFIG_IPVLAN).
type IPvlanSpec struct {
	Attrs         // no MAC: the address is the parent's
	Parent string // the device to share
	Mode   IPvlanMode
	Flag   IPvlanFlag
}

// IPvlanMode selects the layer at which the devices of one parent are told apart
// (include/uapi/linux/if_link.h). All devices of one parent have the mode that
// was set last. "" is the kernel's default, l3.
type IPvlanMode string

// The modes of an ipvlan device.
const (
	IPvlanL2  IPvlanMode = "l2"  // by address, with ARP, broadcast and multicast
	IPvlanL3  IPvlanMode = "l3"  // routed in the parent's namespace; no ARP, no broadcast
	IPvlanL3S IPvlanMode = "l3s" // like l3, but through the netfilter hooks of the parent's namespace
)

// IPvlanFlag selects how the devices of one parent reach each other. All devices
// of one parent have the flag that was set last. "" is the kernel's default,
// bridge.
type IPvlanFlag string

// The flags of an ipvlan device.
const (
	IPvlanBridge  IPvlanFlag = "bridge"  // directly
	IPvlanPrivate IPvlanFlag = "private" // not at all
	IPvlanVEPA    IPvlanFlag = "vepa"    // through the external switch; in mode l2 the switch must send frames back to the port they came from
)

// Kind implements Spec.
func (IPvlanSpec) Kind() string { return "ipvlan" }

// Validate implements Spec.
func (s IPvlanSpec) Validate() error {
	return validate("ipvlan", s.params(),
		rule{s.MAC != (MAC{}), "mac", "none: the device has its parent's"},
	)
}

func (s *IPvlanSpec) params() []field {
	return append(s.Attrs.params(), []field{
		{name: "parent", val: parent{device{p: &s.Parent, required: true}}},
		{"mode", unix.IFLA_IPVLAN_MODE, choice[IPvlanMode]{p: &s.Mode, size: 2, options: []option{
			{"l2", 0}, {"l3", 1}, {"l3s", 2}}}},
		{"flag", unix.IFLA_IPVLAN_FLAGS, choice[IPvlanFlag]{p: &s.Flag, size: 2, options: []option{
			{"bridge", 0}, {"private", 1}, {"vepa", 2}}}},
	}...)
}

func (s IPvlanSpec) create(m *creator) error {
	return m.newLink(request{kind: "ipvlan", attrs: s.Attrs, parent: s.Parent, fields: s.params()}, requestUnderlay)
}

// complete clears the address, which is the parent's.
func (s *IPvlanSpec) complete(*reader, Spec) error {
	s.MAC = MAC{}
	return nil
}
