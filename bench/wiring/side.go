package wiring

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/bench/catalog"
	"cleat/lab"
	"cleat/link"

	"golang.org/x/sys/unix"
)

// Side is one machine's part of a network between two. Its host's namespace is the
// machine's own: a builder creates links there only to move them into a namespace of the
// network, and changes neither addresses nor routes, rules or parameters. So nothing is
// left when the network's namespaces are gone, whatever ended them.
type Side struct {
	Number int    `json:"number"` // 1 has the clients, 2 the servers
	Slot   int    `json:"slot"`   // tells networks apart that the machines have at the same time
	Device string `json:"device"` // by which the machine reaches the other one

	// Chosen: the user has named Device, so that links may be stacked on it.
	Chosen bool       `json:"chosen,omitempty"`
	Local  netip.Addr `json:"local"`  // the machine's address, of a path that works
	Remote netip.Addr `json:"remote"` // the other machine's
	Keys   []SideKeys `json:"keys,omitempty"`

	Host *lab.Node `json:"-"` // the machine
}

// SideKeys are the WireGuard keys of one pair on one side.
type SideKeys struct {
	Private link.WireGuardKey    `json:"private"`
	Peer    link.WireGuardPublic `json:"peer"`
}

// NewSideKeys returns the keys of both sides for each pair; nil if the network needs none.
func NewSideKeys(network string, pairs int) (first, second []SideKeys, err error) {
	if network != "wireguard" {
		return nil, nil, nil
	}
	for range pairs {
		var keys [2]link.WireGuardKey
		for i := range keys {
			if keys[i], err = link.NewWireGuardKey(); err != nil {
				return nil, nil, err
			}
		}
		first = append(first, SideKeys{keys[0], keys[1].Public()})
		second = append(second, SideKeys{keys[1], keys[0].Public()})
	}
	return first, second, nil
}

// Networks that a Side can have: tunnels need a path between the machines only, and
// stacked links need a device of each machine on the same segment.
var (
	sideTunnels = []string{"vxlan", "vxlan-multicast", "vxlan-fdb", "vxlan-bridge", "vxlan-multicast-bridge", "vxlan-fdb-bridge", "geneve", "wireguard", "ipip", "gre"}
	sideStacked = []string{"macvlan-bridge", "macvlan-private", "macvlan-vepa", "macvlan-passthru", "macvlan-source",
		"ipvlan-l2", "ipvlan-l2-private", "ipvlan-l2-vepa", "vlan"}
)

// IsStacked reports whether the sides of a network put links on their machines' devices.
func IsStacked(network string) bool { return slices.Contains(sideStacked, network) }

// keylessTunnels are told apart by their outer addresses, so two machines have one.
var keylessTunnels = []string{"ipip", "gre"}

// CheckSides returns a *NotApplicable for a network that can't be built between two
// machines; nil for others. Chosen says whether the user has named the machines' devices.
func CheckSides(cfg Config, chosen bool) error {
	e, _ := catalog.Lookup(cfg.Network)
	why := ""
	stacked := IsStacked(cfg.Network)
	switch {
	case e.OneHost:
		why = "it joins containers of one host only"
	case cfg.Topology == "local" && e.Role != catalog.Overlay:
		why = "both ends are on one host in the topology local"
	case e.Cluster, e.Role == catalog.Named, e.Role == catalog.Attacher:
		why = "its programs are not sent to other machines"
	case e.Role == catalog.Multipath:
		why = "it needs links of its own between the machines"
	case e.Role == catalog.Rootless:
		why = "it joins a container and its host's network, and spans no machines itself"
	case !stacked && !slices.Contains(sideTunnels, cfg.Network):
		why = "it changes the machine's own device, addresses, routes or rules, which could cut the machine off"
	case stacked && !chosen:
		why = "it puts links on a machine's device: name one for each machine with --device"
	case cfg.Pairs > 1 && slices.Contains(keylessTunnels, cfg.Network):
		why = "between two machines it carries one pair: tunnels without a key are told apart by their outer addresses"
	case cfg.Runtime != "" && cfg.Runtime != "native":
		why = "on other machines both ends run natively"
	case cfg.MTU != 0, cfg.RateBitsPerSec != 0:
		why = "MTU and rate of the machines' own links stay as they are"
	case cfg.NoChecksum, cfg.Hairpin:
		why = "settings of the machines' own links and switches stay as they are"
	}
	if why != "" {
		return &NotApplicable{Why: why}
	}
	return nil
}

// BuildSide builds one side of a network between two machines, with the containers of
// that side only and without pairs. Errors are those of Build.
func BuildSide(ctx context.Context, cfg Config, side Side) (*Network, error) {
	entry, _ := catalog.Lookup(cfg.Network)
	build := builders[cfg.Network]
	switch {
	case build == nil:
		return nil, fmt.Errorf("%w %q", ErrUnknown, cfg.Network)
	case cfg.Network == "wireguard" && len(side.Keys) < cfg.Pairs:
		return nil, fmt.Errorf("build %s: %d keys for %d pairs", cfg.Network, len(side.Keys), cfg.Pairs)
	}
	if err := CheckSides(cfg, side.Chosen); err != nil {
		return nil, err
	}
	cfg.Topology = "switched" // as a lab has it for two hosts
	return buildWith(ctx, cfg, entry, build, &side)
}

// Container returns the container of a side for a pair; nil if there is none.
func (nw *Network) Container(pair int) *lab.Node {
	if pair < 0 || pair >= len(nw.containers) {
		return nil
	}
	return nw.containers[pair]
}

// addSide is addContainerPairs for the containers of a side.
func (nw *Network) addSide(attach attachFunc) error {
	role, addr := "client", clientAddr
	if nw.side.Number == 2 {
		role, addr = "server", serverAddr
	}
	for i := range nw.cfg.Pairs {
		c, err := nw.container(role, i)
		if err != nil {
			return err
		}
		nw.cleanups = append(nw.cleanups, func() error { return removeInside(c) })
		if err := attach(i, nw.side.Host, c, addr(i)); err != nil {
			return err
		}
	}
	return nil
}

// removeInside removes a container's link now. The kernel would do so some time after the
// container's end, and until then no other link could have its place on the machine.
func removeInside(c *lab.Node) error {
	err := onLink(c, inside, (*link.Link).Close)
	if errors.Is(err, unix.ENODEV) {
		return nil // it was never created
	}
	return err
}

// uplink returns the name of a host's device toward the other host.
func (nw *Network) uplink() string {
	if nw.side != nil {
		return nw.side.Device
	}
	return uplink
}

// Across returns a network between two machines, both sides of which are built: client
// and server return where the ends of a pair run. Close calls remove.
func Across(pairs int, client, server func(pair int) lab.Runner, remove func() error) *Network {
	nw := &Network{cleanups: []func() error{remove}}
	for i := range pairs {
		nw.Pairs = append(nw.Pairs, Pair{Client: client(i), Server: server(i), Listen: endpoint(anyAddr, i), Dial: endpoint(serverAddr(i), i)})
	}
	return nw
}

// Over returns the network that is a path between two machines, on which the servers
// listen from an address on that the client reaches. Close changes nothing.
func Over(pairs int, client, server lab.Runner, first netip.AddrPort) *Network {
	nw := &Network{}
	for i := range pairs {
		at := netip.AddrPortFrom(first.Addr(), first.Port()+uint16(i))
		nw.Pairs = append(nw.Pairs, Pair{Client: client, Server: server, Listen: at, Dial: at})
	}
	return nw
}
