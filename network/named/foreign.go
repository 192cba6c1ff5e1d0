package named

import (
	"context"
	"slices"

	"cleat/internal/statedir"
	"cleat/network/firewall"
)

// Other programs' firewalls see the packets of networks as well, and some drop what they don't
// know: Docker, ufw and firewalld do. The chains of iptables get exceptions with the first
// network on the host, which go with the last. What else drops packets becomes a note of the
// command that creates a network, and a finding of Check.

// foreignPrefixes are the starts of the names of all devices of networks: see
// NetworkSpec.device and Network.peer.
var foreignPrefixes = []string{"cl-", "clr"}

// exempt returns what needs exceptions: foreignPrefixes, the devices of engines' networks, whose names differ,
// devices that lead to other hosts' containers only, and the subnets of networks in a VRF.
func (s Store) exempt() firewall.Exempt {
	x := firewall.Exempt{Devices: slices.Clone(foreignPrefixes)}
	networks, _ := s.Networks() // what can't be read has no device yet
	for _, n := range networks {
		if n.Bridge != "" {
			x.Devices = append(x.Devices, n.Bridge)
		}
		if n.Span != nil {
			for _, r := range n.Span.Remotes { // others are uplinks, about which the host's owner decides
				if r.Only && !slices.Contains(x.Devices, r.Device) {
					x.Devices = append(x.Devices, r.Device)
				}
			}
		}
		for _, sub := range n.Subnets {
			if n.VRF != "" {
				x.Sources = append(x.Sources, firewall.VRFPrefix{VRF: n.VRF, Prefix: sub.Prefix})
			}
		}
	}
	return x
}

// lockForeign waits for the lock under which exceptions are made.
func (s Store) lockForeign(ctx context.Context) (unlock func(), err error) {
	return statedir.Lock(ctx, s.RunPath("foreign"))
}

// hasHostNetworks reports whether the packets of any network pass the host.
func (s Store) hasHostNetworks() (bool, error) {
	all, err := s.Networks()
	return slices.ContainsFunc(all, func(n *Network) bool { return n.OnHost() }), err
}

// acceptForeign makes exceptions for networks in other programs' firewalls, and removes them if
// no network is left on the host. A failure is not an error: checkForeign finds what is missing.
func (s *session) acceptForeign(ctx context.Context) error {
	unlock, err := s.store.lockForeign(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	some, err := s.store.hasHostNetworks()
	if err != nil {
		return err
	}
	if table := tableOf(s.store, s.host); some {
		err = table.AcceptInIptables(s.store.exempt())
	} else {
		err = table.RemoveFromIptables()
	}
	if err != nil {
		s.note("%v", err)
	}
	return nil
}

// noteForeign notes what still drops packets of networks.
func (s *session) noteForeign() {
	for _, d := range s.checkForeign() {
		s.note("%s", d)
	}
}

// checkForeign lists chains of other programs that drop packets of networks. Rules that can't be
// read must not keep a keeper from its own, so they are a difference as well.
func (s *session) checkForeign() (all []Difference) {
	some, err := s.store.hasHostNetworks()
	if err == nil && !some {
		return nil
	}
	var drops []firewall.ForeignDrop
	if err == nil {
		drops, err = tableOf(s.store, s.host).ForeignDrops(s.store.exempt())
	}
	for _, d := range drops {
		all = append(all, Difference{What: d.String() + ", without an exception for networks", Remedy: d.Remedy})
	}
	if err != nil {
		all = append(all, Difference{What: err.Error(), Remedy: "Check that they accept packets from and to the devices cl-* and clr*."})
	}
	return all
}

// repairable returns the differences that RepairAll puts right.
func repairable(all []Difference) []Difference {
	return slices.DeleteFunc(slices.Clone(all), func(d Difference) bool { return d.Remedy != "" })
}
