package survey

import (
	"net/netip"
	"strconv"
	"time"
)

// Survey is what was found. Host comes first among Namespaces, the others are
// in the order of their labels.
type Survey struct {
	Host       string      `json:"host"` // the machine's name
	Taken      time.Time   `json:"taken"`
	Namespaces []Namespace `json:"namespaces"`
	Hidden     int         `json:"hidden_processes,omitempty"` // whose namespace may not be known
	Notes      []string    `json:"notes,omitempty"`            // what could not be read, for people
}

// Origin is what a namespace's label was taken from.
type Origin string

// The origins, the most telling first.
const (
	OfHost      Origin = "host"      // process 1's
	OfHere      Origin = "here"      // the caller's own, where process 1's can't be told
	OfContainer Origin = "container" // an engine's
	OfName      Origin = "name"      // a file under /run/netns, or a mount
	OfProcess   Origin = "process"   // nothing but what runs in it
	OfHolder    Origin = "holder"    // no process: one elsewhere holds a descriptor
)

// Namespace is one network namespace.
type Namespace struct {
	ID        uint64    `json:"id"` // inode number
	Label     string    `json:"label"`
	Origin    Origin    `json:"origin"`
	Container string    `json:"container,omitempty"`    // name, or the beginning of its identifier
	Runtime   string    `json:"runtime,omitempty"`      // docker, podman …
	Names     []string  `json:"names,omitempty"`        // files that stand for it
	PID       int       `json:"pid,omitempty"`          // its process with the lowest number; 0: none
	Processes int       `json:"processes"`              // without the kernel's own
	Programs  []Program `json:"programs,omitempty"`     // the most frequent first
	Since     time.Time `json:"since,omitzero"`         // no later than this
	Links     []Link    `json:"links"`                  // by index
	Defaults  []Route   `json:"default_routes"`         // of the main table, the best first
	Unread    string    `json:"unread,omitempty"`       // why there are no links
	Forwards  bool      `json:"forwards_ipv4,omitzero"` // it routes IPv4 packets
}

// Program is what several processes of one name are.
type Program struct {
	Name  string `json:"name"` // as the kernel has it: 15 bytes at most, and any bytes
	Count int    `json:"count"`
}

// Link is one link. Relations that are nil do not exist.
type Link struct {
	Index       int            `json:"index"`
	Name        string         `json:"name"`
	Kind        string         `json:"kind"`             // as the kernel calls it; "loopback"; "device" for what no driver of links made
	Detail      string         `json:"detail,omitempty"` // what else the kind says: "bridge", "100", "VNI 42"
	Up          bool           `json:"up"`
	Carrier     bool           `json:"carrier"`
	MTU         int            `json:"mtu"` // bytes
	MAC         string         `json:"mac,omitempty"`
	SpeedMbit   int            `json:"speed_mbit,omitempty"`  // of hardware alone
	Qdisc       string         `json:"qdisc,omitempty"`       // of the root
	QdiscDrops  uint32         `json:"qdisc_drops,omitempty"` // packets that the root dropped
	RateBits    int64          `json:"rate_bits_per_sec,omitempty"`
	Promiscuity int            `json:"promiscuity,omitempty"` // how many users want every packet
	Addresses   []netip.Prefix `json:"addresses,omitempty"`
	Master      int            `json:"master,omitempty"`   // index of the bridge, bond, … that it is a port of
	Peer        *End           `json:"peer,omitempty"`     // of a pair
	Parent      *End           `json:"parent,omitempty"`   // what a VLAN or macvlan stands on
	Underlay    *End           `json:"underlay,omitempty"` // by which a tunnel sends
	Local       string         `json:"local,omitempty"`    // of a tunnel
	Remote      string         `json:"remote,omitempty"`   // of a tunnel
	Ports       []SwitchPort   `json:"ports,omitempty"`    // of a bridge of Open vSwitch: those that are no links
	Counters    Counters       `json:"counters"`
}

// SwitchPort is a port of Open vSwitch that is none of the links that were found.
type SwitchPort struct {
	Name   string `json:"name"`
	Kind   string `json:"kind,omitempty"`  // "patch", "geneve", "vxlan" …; "": a device
	VLANs  string `json:"vlans,omitempty"` // "VLAN 100"; "": all
	Remote string `json:"remote,omitempty"`
	Peer   string `json:"peer,omitempty"`  // of a patch
	Error  string `json:"error,omitempty"` // why it is none
}

// Counters are packets since the link was made.
type Counters struct {
	RxPackets uint64 `json:"rx_packets"`
	TxPackets uint64 `json:"tx_packets"`
	RxErrors  uint64 `json:"rx_errors"`
	TxErrors  uint64 `json:"tx_errors"`
	RxDropped uint64 `json:"rx_dropped"`
	TxDropped uint64 `json:"tx_dropped"`
}

// Lost is how many packets a link dropped or found wrong.
func (c Counters) Lost() uint64 { return c.RxErrors + c.TxErrors + c.RxDropped + c.TxDropped }

// End is a link, perhaps in another namespace.
type End struct {
	NamespaceID uint64 `json:"namespace_id,omitempty"` // 0: not found
	Namespace   string `json:"namespace,omitempty"`    // its label
	Index       int    `json:"index,omitempty"`        // 0: a tunnel that is bound to no link
	Name        string `json:"name,omitempty"`         // "": not read
	NSID        int    `json:"nsid"`                   // what the link's own namespace calls that one; -1: it is the same
}

// String is the end as "namespace/link".
func (e End) String() string {
	switch {
	case e.NamespaceID == 0:
		return "?/#" + strconv.Itoa(e.Index)
	case e.Index == 0:
		return e.Namespace
	case e.Name == "":
		return e.Namespace + "/#" + strconv.Itoa(e.Index)
	}
	return e.Namespace + "/" + e.Name
}

// Route is a default route.
type Route struct {
	Via    netip.Addr `json:"via,omitzero"` // not valid: straight out of the link
	Link   string     `json:"link"`
	Index  int        `json:"index"`
	Metric int        `json:"metric,omitempty"`
	IPv6   bool       `json:"ipv6,omitempty"`
}

// ByIndex is the link with this number, nil if there is none.
func (n *Namespace) ByIndex(index int) *Link {
	for i := range n.Links {
		if n.Links[i].Index == index {
			return &n.Links[i]
		}
	}
	return nil
}

// ByID is the namespace with this number, nil if there is none.
func (s *Survey) ByID(id uint64) *Namespace {
	for i := range s.Namespaces {
		if s.Namespaces[i].ID == id {
			return &s.Namespaces[i]
		}
	}
	return nil
}
