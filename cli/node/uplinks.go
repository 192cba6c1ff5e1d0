package node

import (
	"fmt"
	"net/netip"

	"cleat/cli/hint"
	"cleat/overlay"
)

// noUplinks is how a user says that a host has no uplinks for tunnels any more.
const noUplinks = "none"

// uplinkNames returns the devices of --uplinks.
func (f *upFlags) uplinkNames() []string {
	if len(f.uplinks) == 1 && f.uplinks[0] == noUplinks {
		return nil
	}
	return f.uplinks
}

// checkUplinks returns an error unless the host has the devices of --uplinks, each with an address of the family of the
// host's own.
func (f *upFlags) checkUplinks(s *overlay.Settings) error {
	is6 := s != nil && s.Address.Is6()
	if a, err := netip.ParseAddr(f.address); s == nil && err == nil {
		is6 = a.Is6()
	}
	if f.uplinks != nil && len(f.uplinks) == 0 {
		return hint.With(hint.Usagef("--uplinks: no device"), "e.g. --uplinks eth0,eth1, or --uplinks "+noUplinks)
	}
	seen := map[string]bool{}
	for _, name := range f.uplinkNames() {
		if seen[name] {
			return hint.Usagef("--uplinks: %s is there twice", name)
		}
		seen[name] = true
		if _, err := overlay.UplinkAddress(name, is6); err != nil {
			return hint.With(fmt.Errorf("--uplinks: %w", err), "`ip -brief address` lists this host's devices")
		}
	}
	return nil
}
