package named

import (
	"fmt"
	"net/netip"
)

// claims are what the networks and containers of a file want for themselves alone. Two that want
// the same would only be noticed after half of the file was applied.
type claims struct {
	subnets   map[netip.Prefix]string // network by subnet
	ports     []claimedPort
	addresses map[string]string // container by "network address"
}

type claimedPort struct {
	Port
	owner string
}

func newClaims() *claims {
	return &claims{subnets: map[netip.Prefix]string{}, addresses: map[string]string{}}
}

// network returns an error if another network of the file overlaps this one.
func (c *claims) network(s *NetworkSpec) error {
	if !s.OnHost() {
		return nil // its subnet is the parent's
	}
	for _, sub := range s.Subnets {
		for other, network := range c.subnets {
			if other.Overlaps(sub.Prefix) {
				return badSpec("subnet", sub.Prefix.String(), fmt.Sprintf("overlaps %s of network %s", other, network))
			}
		}
	}
	for _, sub := range s.Subnets {
		c.subnets[sub.Prefix] = s.Name
	}
	return nil
}

// container returns an error if another container of the file has an address or a port, or if two
// of its own ports are the same.
func (c *claims) container(s *NetworkSpec, ref string, wanted *Connection) error {
	owner := s.Name + "/" + ref
	for _, a := range wanted.Addresses {
		key := s.Name + " " + a.String()
		if other := c.addresses[key]; other != "" {
			return badSpec("ip", a.String(), "is that of "+other)
		}
		if name := s.Reserve.owner(a); name != "" && name != ref {
			return badSpec("ip", a.String(), "is reserved for "+name)
		}
		c.addresses[key] = owner
	}
	for _, p := range wanted.Ports {
		for _, q := range c.ports {
			if p.HostPort != 0 && p.overlaps(q.Port) {
				return badSpec("ports", p.String(), fmt.Sprintf("overlaps %s of %s", q, q.owner))
			}
		}
		if p.HostPort != 0 {
			c.ports = append(c.ports, claimedPort{p, owner})
		}
	}
	return nil
}
