package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// VRFPrefix is a prefix of a network in a VRF.
type VRFPrefix struct {
	VRF    string
	Prefix netip.Prefix
}

// vrfPrefixes returns the prefixes of all networks in a VRF.
func (s State) vrfPrefixes() (all []VRFPrefix) {
	for _, n := range s.Networks {
		for _, p := range n.Prefixes {
			if n.VRF != "" {
				all = append(all, VRFPrefix{n.VRF, p.Masked()})
			}
		}
	}
	return all
}

// vrfRoute is a prefix that only the routing table of a VRF leads to.
type vrfRoute struct {
	prefix netip.Prefix
	table  int
}

// leadTo makes the doorway lead to prefixes in VRFs, once open is called. What comes out of it is in no
// VRF, so it would be routed elsewhere. A VRF that does not exist is left out.
func (d *door) leadTo(all []VRFPrefix) error {
	for _, p := range all {
		l, err := d.h.LinkByName(p.VRF)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find VRF %s: %w", p.VRF, err)
		}
		if v, ok := l.(*netlink.Vrf); ok {
			d.vrfs = append(d.vrfs, vrfRoute{p.Prefix, int(v.Table)})
		}
	}
	return nil
}

// vrfRule returns the routing rule that leads from the doorway to a prefix.
func (d *door) vrfRule(to vrfRoute) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = familyOf(to.prefix.Addr()).domain(), vrfRulePriority, to.table, routingProtocol
	r.IifName, r.Dst = d.doorway.out, netOf(to.prefix)
	return r
}

// vrfRules returns the routing rules of a family that exist and that lead to prefixes in VRFs.
func (d *door) vrfRules(f family) (all []netlink.Rule, err error) {
	filter := &netlink.Rule{Priority: vrfRulePriority}
	all, err = link.Dump(func() ([]netlink.Rule, error) {
		return d.h.RuleListFiltered(f.domain(), filter, netlink.RT_FILTER_PRIORITY)
	})
	return slices.DeleteFunc(all, func(r netlink.Rule) bool { return r.IifName != d.doorway.out }), ignoreMissingFamily(err)
}

// vrfRulesPart returns the part for all routing rules of a family that lead to prefixes in VRFs.
func (d *door) vrfRulesPart(f family) part {
	var missing, extra []*netlink.Rule
	compare := func() (bool, error) {
		now, err := d.vrfRules(f)
		missing, extra = nil, nil
		for _, to := range d.vrfs {
			if !f.has(to.prefix.Addr()) {
				continue
			}
			if i := slices.IndexFunc(now, to.isOf); i >= 0 {
				now = slices.Delete(now, i, i+1)
			} else {
				missing = append(missing, d.vrfRule(to))
			}
		}
		for i := range now {
			now[i].Family = f.domain()
			extra = append(extra, &now[i])
		}
		return len(missing)+len(extra) == 0, err
	}
	return part{name: f.name + " routing rules into VRFs", right: compare, fix: func() error {
		for _, r := range extra {
			if err := d.h.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		for _, r := range missing {
			if err := d.h.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		return nil
	}}
}

// isOf reports whether a routing rule leads to the prefix.
func (to vrfRoute) isOf(r netlink.Rule) bool {
	return r.Table == to.table && r.Dst != nil && r.Dst.String() == to.prefix.String()
}
