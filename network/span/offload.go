package span

import (
	"fmt"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// Software is what the kernel does itself for the packets that enter the VXLAN device, because the network card does it
// wrong when they are in other packets.
type Software struct {
	Checksums bool // and Segments, which have checksums
	Segments  bool // dividing large TCP segments
}

// Values of the VXLAN device's alias, by which Sync knows what it has switched off. `ip link` shows them.
const (
	aliasChecksums = "cleat-node: checksums in software"
	aliasSegments  = "cleat-node: segments in software"
)

func (o Software) alias() string {
	switch {
	case o.Checksums:
		return aliasChecksums
	case o.Segments:
		return aliasSegments
	}
	return ""
}

// softwareOf returns what Sync has switched off on a device.
func softwareOf(v *netlink.Vxlan) Software {
	return Software{Checksums: v.Alias == aliasChecksums, Segments: v.Alias == aliasSegments}
}

// SoftwareNow returns what Sync has switched off in a namespace.
func SoftwareNow(ns *netns.NS) (Software, error) {
	h, err := link.Handle(ns)
	if err != nil {
		return Software{}, err
	}
	defer h.Close()
	v, err := (&syncer{h: h}).vxlan()
	if v == nil || err != nil {
		return Software{}, err
	}
	return softwareOf(v), nil
}

// offloads switches offloads of the device off, and those on again that Sync has switched off. What somebody else has
// switched off stays so.
func (s *syncer) offloads(ns *netns.NS) error {
	want := s.config.Software
	v, err := s.vxlan()
	if v == nil || err != nil {
		return err
	}
	have := softwareOf(v)
	if want == (Software{}) && have == want {
		return nil
	}
	l, err := link.Find(ns, Device)
	if err != nil {
		return err
	}
	var changed bool
	for _, o := range []struct {
		name       string
		want, have bool
	}{{"tx", want.Checksums, have.Checksums}, {"tso", want.Segments && !want.Checksums, have.Segments}} {
		if !o.want && !o.have {
			continue
		}
		isOn, err := l.Offload(o.name)
		if err != nil {
			return err
		}
		if isOn == !o.want {
			continue
		}
		if err := l.SetOffload(o.name, !o.want); err != nil {
			return err
		}
		changed = true
	}
	if alias := want.alias(); alias != v.Alias {
		if err := s.h.LinkSetAlias(v, alias); err != nil {
			return fmt.Errorf("set the alias of %s: %w", Device, err)
		}
		changed = true
	}
	if changed {
		s.note("offloads of %s: %s", Device, want)
	}
	return nil
}

// String returns what the kernel does, in words.
func (o Software) String() string {
	switch {
	case o.Checksums:
		return "checksums in software"
	case o.Segments:
		return "segments in software"
	}
	return "as the device has them"
}
