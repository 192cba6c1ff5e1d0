package named

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"cleat/network/attach"
)

// Reservations are addresses of a network that are kept for containers, by the container's name,
// with or without its engine. Each has at most one address of a family.
type Reservations map[string][]netip.Addr

// ParseReservation parses the addresses of one container: one, or two separated by a comma.
func ParseReservation(text string) (addrs []netip.Addr, err error) {
	for word := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(word))
		if err != nil {
			return nil, badSpec("reserve", text, "want an IP address, or two separated by a comma")
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// Lines returns the reservations as NAME=ADDRESS[,ADDRESS], sorted by name.
func (r Reservations) Lines() (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		lines = append(lines, name+"="+strings.Join(texts(r[name]), ","))
	}
	return lines
}

func (r Reservations) equal(other Reservations) bool {
	return maps.EqualFunc(r, other, slices.Equal[[]netip.Addr])
}

// owner returns the name that an address is reserved for; "" if it is not.
func (r Reservations) owner(a netip.Addr) string {
	for name, addrs := range r {
		if slices.Contains(addrs, a) {
			return name
		}
	}
	return ""
}

// isFor reports whether a reservation's name is that of a container.
func isFor(name string, c attach.Container) bool {
	return name == c.Name || name == c.QualifiedName() || name == c.ShortName()
}

// of returns the addresses that are reserved for a container.
func (r Reservations) of(c attach.Container) (all []netip.Addr) {
	for name, addrs := range r {
		if isFor(name, c) {
			all = append(all, addrs...)
		}
	}
	return all
}

// notFor returns the addresses that are reserved for other containers.
func (r Reservations) notFor(c attach.Container) (all []netip.Prefix) {
	for name, addrs := range r {
		if isFor(name, c) {
			continue
		}
		for _, a := range addrs {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all
}

// checkReserve returns an *attach.SpecError if a reservation is not possible.
func (s *NetworkSpec) checkReserve() error {
	owners := map[netip.Addr]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Reserve)) {
		addrs := s.Reserve[name]
		if name == "" || strings.ContainsAny(name, "=, ") {
			return badSpec("reserve", name, "want the name of a container")
		}
		for i, a := range addrs {
			text := name + "=" + a.String()
			sub := s.subnet(a)
			switch {
			case sub == nil:
				return badSpec("reserve", text, "is in no subnet of network "+s.Name)
			case a == sub.Gateway:
				return badSpec("reserve", text, "is the gateway")
			case owners[a] != "":
				return badSpec("reserve", text, "is reserved for "+owners[a])
			case slices.ContainsFunc(addrs[:i], func(o netip.Addr) bool { return o.Is4() == a.Is4() }):
				return badSpec("reserve", text, "is the second one of its address family")
			}
			owners[a] = name
		}
	}
	return nil
}

// AddressReservedError means that an address is reserved for another container.
type AddressReservedError struct {
	Addr         netip.Addr
	Network, For string
}

func (e *AddressReservedError) Error() string {
	return fmt.Sprintf("address %s of network %s is reserved for %s", e.Addr, e.Network, e.For)
}
