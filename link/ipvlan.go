package link

import "golang.org/x/sys/unix"

// IPvlanMode says at which layer the devices of one parent are told apart
// (include/uapi/linux/if_link.h). All devices of one parent have the mode that
// was set last.
type IPvlanMode string

// The modes of an ipvlan device.
const (
	IPvlanL2  IPvlanMode = "l2"  // by address, with ARP, broadcast and multicast
	IPvlanL3  IPvlanMode = "l3"  // routed in the parent's namespace; no ARP, no broadcast; the kernel's default
	IPvlanL3S IPvlanMode = "l3s" // like l3, but through the parent namespace's netfilter hooks
)

// IPvlanFlag says how the devices of one parent reach each other. All devices
// of one parent have the flag that was set last.
type IPvlanFlag string

// The flags of an ipvlan device.
const (
	IPvlanBridge  IPvlanFlag = "bridge"  // directly; the kernel's default
	IPvlanPrivate IPvlanFlag = "private" // not at all
	IPvlanVEPA    IPvlanFlag = "vepa"    // by way of the switch; mode l2 needs one that sends frames back to the port they came from
)

// IPvlanSpec is a device with IP addresses of its own but its parent's Ethernet
// address (drivers/net/ipvlan/). Attrs.MAC must be zero.
type IPvlanSpec struct {
	Attrs
	Parent string
	Mode   IPvlanMode // "": the kernel's, l3
	Flag   IPvlanFlag // "": the kernel's, bridge
}

// Kind implements Spec.
func (IPvlanSpec) Kind() string { return "ipvlan" }

// Validate implements Spec.
func (s IPvlanSpec) Validate() error {
	if err := checkValues("ipvlan", s.params()); err != nil {
		return err
	}
	if s.MAC != (MAC{}) {
		return paramError("ipvlan", "mac", s.MAC, "none: the device has its parent's")
	}
	return nil
}

func (s *IPvlanSpec) params() []field {
	return append(s.Attrs.params(), append([]field{
		{name: "parent", val: device{p: &s.Parent, required: true}},
	}, s.fields()...)...)
}

func (s *IPvlanSpec) fields() []field {
	return []field{
		{"mode", unix.IFLA_IPVLAN_MODE, choice[IPvlanMode]{p: &s.Mode, size: 2, options: []option{
			{"l2", 0}, {"l3", 1}, {"l3s", 2}}}},
		{"flag", unix.IFLA_IPVLAN_FLAGS, choice[IPvlanFlag]{p: &s.Flag, size: 2, options: []option{
			{"bridge", 0}, {"private", 1}, {"vepa", 2}}}},
	}
}

func (s IPvlanSpec) create(m *creator) error {
	return m.newLink(request{kind: "ipvlan", attrs: s.Attrs, parent: s.Parent, fields: s.fields()}, requestUnderlay)
}

// read leaves the address out: it is the parent's.
func (s IPvlanSpec) read(r *reader) (Spec, error) {
	var got IPvlanSpec
	if err := r.into(&got.Attrs, got.fields()); err != nil {
		return nil, err
	}
	got.MAC = MAC{}
	var err error
	got.Parent, err = r.parent()
	return got, err
}
