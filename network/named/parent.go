package named

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/link"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// parentDevice returns the name of the device of the host that leads to the network: the parent,
// or its VLAN device, which need not exist. It is "" if the host is the gateway.
func (s *NetworkSpec) parentDevice() string {
	if s.OnHost() || s.VLAN == 0 || s.Driver == Unmanaged {
		return s.Parent
	}
	return fmt.Sprintf("%s.%d", s.Parent, s.VLAN)
}

// kind returns the kind of the links of the network's containers. The kernel allows one device for
// each VLAN of a parent, so containers on a VLAN share it by macvlan.
func (s *NetworkSpec) kind() string {
	switch s.Driver {
	case VLAN:
		return Macvlan
	case Unmanaged:
		return Bridge
	}
	return s.Driver
}

// checkParent returns an *attach.SpecError if no container can be connected to the network because
// of its parent.
func (s *session) checkParent(spec *NetworkSpec) error {
	if spec.OnHost() {
		return nil
	}
	as := attach.Spec{Kind: spec.kind(), Parent: spec.Parent, VLAN: spec.VLAN, MTU: spec.MTU}
	if spec.Driver == Unmanaged {
		as.VLAN = 0 // of the port, not a device on the parent
	}
	return parentError(attach.CheckParent(s.store.Store, as))
}

// parentError renames the argument PARENT of `cleat attach` in an error to the option of networks.
func parentError(err error) error {
	var bad *attach.SpecError
	if !errors.As(err, &bad) || bad.Param != "PARENT" {
		return err
	}
	renamed := *bad
	renamed.Param, renamed.AttachTo = "parent", "" // another kind of attachment is no advice for a network
	return &renamed
}

// parentGateways sets the gateways of subnets that have none to the gateway that the host uses on
// the parent's network, if it is in the subnet.
func (s *session) parentGateways(spec *NetworkSpec) error {
	if spec.Parent == "" {
		return nil
	}
	h, err := link.Handle(s.host)
	if err != nil {
		return err
	}
	defer h.Close()
	parent, err := h.LinkByName(spec.parentDevice())
	if err != nil {
		return nil // checkParent reports a parent that is missing
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := link.Dump(func() ([]netlink.Route, error) { return h.RouteList(parent, family) })
		if err != nil {
			return fmt.Errorf("list routes of %s: %w", spec.Parent, err)
		}
		for _, r := range routes {
			gateway, ok := netip.AddrFromSlice(r.Gw)
			for i := range spec.Subnets {
				sub := &spec.Subnets[i]
				if ok && !sub.Gateway.IsValid() && sub.Prefix.Contains(gateway.Unmap()) {
					sub.Gateway = gateway.Unmap()
				}
			}
		}
	}
	return nil
}

// hostAddresses returns the host's own addresses that are in a network of a parent. No container
// can have them, and none of the network reaches them.
func (s *session) hostAddresses(spec *NetworkSpec) ([]netip.Addr, error) {
	if spec.OnHost() {
		return nil, nil
	}
	own, err := prefixesOf(s.host)
	var all []netip.Addr
	for _, p := range own {
		if spec.subnet(p.Addr()) != nil {
			all = append(all, p.Addr())
		}
	}
	return all, err
}

// checkGateways rejects a gateway that is the host itself: packets don't pass between a parent and
// the macvlan and ipvlan devices on it.
func (s *session) checkGateways(spec *NetworkSpec) error {
	if spec.Manager != "" {
		return nil // some engines always have a gateway
	}
	own, err := s.hostAddresses(spec)
	if err != nil {
		return err
	}
	for _, sub := range spec.Subnets {
		if slices.Contains(own, sub.Gateway) {
			return badSpec("gateway", sub.Gateway.String(), "is the host itself, which containers of driver "+spec.Driver+" can't reach; give the router of the network of "+spec.Parent)
		}
	}
	return nil
}

// checkOverlap rejects a subnet that is that of another device of the host, or of another network
// that is not on the same parent.
func (s *session) checkOverlap(spec *NetworkSpec, others []*Network) error {
	var connected []occupied
	if spec.Manager == "" { // an engine has checked that
		var err error
		if connected, err = s.connectedRoutes(spec.parentDevice()); err != nil {
			return err
		}
	}
	for _, n := range others {
		for _, sub := range n.Subnets {
			if n.parentDevice() != spec.parentDevice() {
				connected = append(connected, occupied{sub.Prefix, "network " + n.Name})
			}
		}
	}
	for _, sub := range spec.Subnets {
		if i := slices.IndexFunc(connected, func(o occupied) bool { return o.prefix.Overlaps(sub.Prefix) }); i >= 0 {
			return &attach.TakenError{Resource: "network", Name: sub.Prefix.String(), Owner: connected[i].by}
		}
	}
	return nil
}

// checkParentUp describes what is wrong with the parent of a network; "" if nothing is.
func (s *session) checkParentUp(n *Network) (string, error) {
	if n.OnHost() {
		return "", nil
	}
	h, err := link.Handle(s.host)
	if err != nil {
		return "", err
	}
	defer h.Close()
	l, err := h.LinkByName(n.Parent)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return "its parent " + n.Parent + " does not exist; containers are connected again when it is back", nil
	case err != nil:
		return "", fmt.Errorf("find parent %s: %w", n.Parent, err)
	case l.Attrs().RawFlags&unix.IFF_UP == 0:
		return "its parent " + n.Parent + " is down", nil
	}
	return "", nil
}
