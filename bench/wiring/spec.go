package wiring

import (
	"cmp"
	"strconv"

	"cleat/bench/cell"
	"cleat/bench/multipath"
	"cleat/internal/rate"
)

// Spec describes a network to build. It is comparable: cells with equal Specs can
// share one Network that has enough pairs.
type Spec struct {
	Network        string // name in package catalog
	Runtime        string // where traffic's ends run, one of cell.Runtimes; "": native
	Topology       string // "local", "switched" or "links"
	Inbound        bool   // traffic goes toward the container, for networks with a direction
	MTU            int    // of the links, bytes; 0: the kernel's or the program's default
	RateBitsPerSec int64  // of each cable between hosts; 0: unshaped
	VXLANPort      int    // UDP destination port; 0: 4789
	NoChecksum     bool   // the containers' links do not offload checksums
	Hairpin        bool   // the switch sends frames back out of the port they came in by
	Peer           string // of a container on a rootless or a named network; "": PeerOutside, or on a named network PeerContainer
	Ports          int    // published on a named network; 0: one for each container that is attached, or reached by its port
	Dataplane      string // of a network that spans hosts; "": its program's default
	Datapath       string // of a network or tunnel of Cleat's; "": its default
	Between        string // two machines; "": this machine has both ends

	// The rest of the first group is for networks over several links
	// (catalog.Multipath).
	Links           int     // between the two hosts; 0: 1
	Variant         string  // one of multipath.Variants; "": multipath.Plain
	LossShare       float64 // of multipath.Loss; 0: multipath.DefaultLoss
	Zoo             uint64  // seed of the case of the zoo that the links are; 0: none
	ZooCap          int64   // bit/s, for the sum of the case's rates; 0: none
	ZooLink         int     // the only link of the case that is used, from 1; 0: all
	IPv6            bool    // of the links' addresses
	Scheduler       string  // of `cleat tunnel`; "": adaptive
	Encrypted       bool    // `cleat tunnel` has a key
	TunnelInRuntime bool    // Runtime is for `cleat tunnel`; traffic's ends are native
	BestSettings    bool    // rivals are configured with what they can't find out by themselves

	// Package attacher reads these, and Ports.
	AttachLink string // kind of link that the container is given
	Endpoints  int    // on the bridge, the parent or the network, with the measured one
}

// Peers of a container: where the other end of its traffic is.
const (
	PeerOutside      = "outside"       // a node beyond the host
	PeerHostLoopback = "host-loopback" // the host: outbound by the address that stands for its loopback, inbound from 127.0.0.1
	PeerHostAddress  = "host-address"  // the host: inbound by its own address
	PeerContainer    = "container"     // another container on the same named network
	PeerHairpin      = "hairpin"       // the same, which asks the port that the host publishes
	PeerMasquerade   = "masquerade"    // a node beyond the host, which the container of a named network asks
)

// SpecOf returns the Spec of the network that a cell needs. The cell's levels are
// valid, as those of an experiment.Experiment's jobs are.
func SpecOf(c cell.Cell) Spec {
	f := c.Factors
	linkRate, _ := rate.Parse(f["link_rate"])
	lossShare, _ := multipath.ParseShare(f["loss"])
	vxlanPort, _ := strconv.Atoi(f["vxlan_port"])
	endpoints, _ := strconv.Atoi(f["endpoints"])
	ports, _ := strconv.Atoi(f["ports"])
	zoo, _ := strconv.ParseUint(f["zoo"], 10, 64)
	zooCap, _ := rate.Parse(f["zoo_cap"])
	zooLink, _ := strconv.Atoi(f["zoo_link"])
	return Spec{
		Network:         c.Network,
		Runtime:         c.Runtime,
		Topology:        c.Topology,
		Inbound:         c.Direction == "inbound",
		MTU:             c.MTU,
		RateBitsPerSec:  int64(linkRate),
		VXLANPort:       vxlanPort,
		NoChecksum:      f["checksum"] == "off",
		Hairpin:         f["hairpin"] == "on",
		Peer:            f["peer"],
		Ports:           ports,
		Dataplane:       f["dataplane"],
		Datapath:        f["datapath"],
		Between:         f["between"],
		Links:           c.Links,
		Variant:         f["variant"],
		LossShare:       lossShare,
		Zoo:             zoo,
		ZooCap:          int64(zooCap),
		ZooLink:         zooLink,
		IPv6:            f["outer"] == "ipv6",
		Scheduler:       f["scheduler"],
		Encrypted:       f["crypto"] == "on",
		TunnelInRuntime: f["contained"] == "program",
		BestSettings:    f["settings"] == "best",
		AttachLink:      f["link"],
		Endpoints:       endpoints,
	}
}

// Multipath returns the links between the two hosts of a network over several.
func (s Spec) Multipath() multipath.Spec {
	return multipath.Spec{
		Links:          cmp.Or(s.Links, 1),
		RateBitsPerSec: float64(s.RateBitsPerSec),
		Variant:        cmp.Or(s.Variant, multipath.Plain),
		LossShare:      s.LossShare,

		Zoo:              s.Zoo,
		ZooCapBitsPerSec: float64(s.ZooCap),
		ZooLink:          s.ZooLink,
	}
}

func (s Spec) switched() bool { return s.Topology == "switched" }

// peerOnHost reports whether a rootless container's peer is its own host.
func (s Spec) peerOnHost() bool { return s.Peer == PeerHostLoopback || s.Peer == PeerHostAddress }
