package survey

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Survey is the result of Take. The host's namespace comes first; the others are sorted by label.
type Survey struct {
	Host            string      `json:"host"` // the machine's host name
	TakenAt         time.Time   `json:"taken"`
	Namespaces      []Namespace `json:"namespaces"`
	Networks        []Network   `json:"networks,omitempty"`         // by name
	HiddenProcesses int         `json:"hidden_processes,omitempty"` // processes whose namespace may not be read
	Notes           []string    `json:"notes,omitempty"`            // what could not be read, for people
}

// Origin is where a namespace's label comes from.
type Origin string

// The origins, by preference.
const (
	OriginHost      Origin = "host"      // the namespace of process 1
	OriginHere      Origin = "here"      // the caller's own, if that of process 1 is not known
	OriginContainer Origin = "container" // a container of an engine
	OriginName      Origin = "name"      // a file under /run/netns, or a mount
	OriginProcess   Origin = "process"   // a process in it
	OriginHolder    Origin = "holder"    // a process elsewhere that holds a descriptor
)

// Namespace is one network namespace.
type Namespace struct {
	ID            uint64    `json:"id"` // inode number
	Label         string    `json:"label"`
	Origin        Origin    `json:"origin"`
	Container     string    `json:"container,omitempty"`    // name or abbreviated identifier
	Runtime       string    `json:"runtime,omitempty"`      // docker, podman …
	Names         []string  `json:"names,omitempty"`        // files that stand for it
	PID           int       `json:"pid,omitempty"`          // the lowest process id in it; 0 if it has no process
	Processes     int       `json:"processes"`              // number of processes, without kernel threads
	Programs      []Program `json:"programs,omitempty"`     // the most frequent first
	Since         time.Time `json:"since,omitzero"`         // it has existed at least since then
	Links         []Link    `json:"links"`                  // by index
	DefaultRoutes []Route   `json:"default_routes"`         // of the main table, by metric
	UnreadReason  string    `json:"unread,omitempty"`       // why Links is empty
	Forwards      bool      `json:"forwards_ipv4,omitzero"` // ip_forward is on
}

// Program counts the processes of one name.
type Program struct {
	Name  string `json:"name"` // at most 15 bytes, which may be any bytes
	Count int    `json:"count"`
}

// Link is a network device. A nil *End means that the link has no such relation.
type Link struct {
	Index       int            `json:"index"`
	Name        string         `json:"name"`
	Kind        string         `json:"kind"`             // the kernel's name; "loopback"; "device" for links without a link kind, such as hardware
	Detail      string         `json:"detail,omitempty"` // mode, VLAN or VNI: "bridge", "100", "VNI 42"
	Up          bool           `json:"up"`
	Carrier     bool           `json:"carrier"`
	MTU         int            `json:"mtu"` // bytes
	MAC         string         `json:"mac,omitempty"`
	SpeedMbit   int            `json:"speed_mbit,omitempty"`  // of hardware only
	Qdisc       string         `json:"qdisc,omitempty"`       // of the root
	QdiscDrops  uint32         `json:"qdisc_drops,omitempty"` // packets that the root dropped
	RateBits    int64          `json:"rate_bits_per_sec,omitempty"`
	Promiscuity int            `json:"promiscuity,omitempty"` // number of users that receive every packet
	Addresses   []netip.Prefix `json:"addresses,omitempty"`
	Master      int            `json:"master,omitempty"`   // index of the bridge, bond, … that it is a port of
	Peer        *End           `json:"peer,omitempty"`     // of a veth pair or the like
	Parent      *End           `json:"parent,omitempty"`   // of a VLAN or macvlan device
	Underlay    *End           `json:"underlay,omitempty"` // link that a tunnel sends by
	Local       string         `json:"local,omitempty"`    // address of a tunnel
	Remote      string         `json:"remote,omitempty"`   // address of a tunnel
	Ports       []SwitchPort   `json:"ports,omitempty"`    // of an Open vSwitch bridge: those that are not links
	Counters    Counters       `json:"counters"`
}

// SwitchPort is a port of Open vSwitch that is not among the links.
type SwitchPort struct {
	Name   string `json:"name"`
	Kind   string `json:"kind,omitempty"`  // "patch", "geneve", "vxlan" …; "" for a device
	VLANs  string `json:"vlans,omitempty"` // "VLAN 100"; "" for all VLANs
	Remote string `json:"remote,omitempty"`
	Peer   string `json:"peer,omitempty"`  // of a patch port
	Error  string `json:"error,omitempty"` // why it has no link
}

// Counters are packets since the link was created.
type Counters struct {
	RxPackets uint64 `json:"rx_packets"`
	TxPackets uint64 `json:"tx_packets"`
	RxErrors  uint64 `json:"rx_errors"`
	TxErrors  uint64 `json:"tx_errors"`
	RxDropped uint64 `json:"rx_dropped"`
	TxDropped uint64 `json:"tx_dropped"`
}

// Lost returns how many packets the link dropped or found faulty.
func (c Counters) Lost() uint64 { return c.RxErrors + c.TxErrors + c.RxDropped + c.TxDropped }

// End refers to a link, perhaps in another namespace.
type End struct {
	NamespaceID uint64 `json:"namespace_id,omitempty"` // 0 if it was not found
	Namespace   string `json:"namespace,omitempty"`    // its label
	Index       int    `json:"index,omitempty"`        // 0 for a tunnel that is not bound to a link
	Name        string `json:"name,omitempty"`         // "" if the link was not read
	NSID        int    `json:"nsid"`                   // number of the namespace in that of the link; -1 for the same namespace
}

// String returns the end as "namespace/link".
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
	Via    netip.Addr `json:"via,omitzero"` // invalid for a route without a gateway
	Link   string     `json:"link"`
	Index  int        `json:"index"`
	Metric int        `json:"metric,omitempty"`
	IPv6   bool       `json:"ipv6,omitempty"`
}

// ByIndex returns the link with an index, nil if there is none.
func (n *Namespace) ByIndex(index int) *Link {
	for i := range n.Links {
		if n.Links[i].Index == index {
			return &n.Links[i]
		}
	}
	return nil
}

// ByID returns the namespace with an inode number, nil if there is none.
func (s *Survey) ByID(id uint64) *Namespace {
	for i := range s.Namespaces {
		if s.Namespaces[i].ID == id {
			return &s.Namespaces[i]
		}
	}
	return nil
}

// Find returns the namespaces that a person may mean by a word: by label, else by the name of a
// container or file, else by the id of the first process, else by an abbreviated container
// identifier. The link in "web/eth0" is ignored.
func (s *Survey) Find(word string) []*Namespace {
	if word == "" {
		return nil
	}
	base, _, _ := strings.Cut(word, "/")
	pid, err := strconv.Atoi(word)
	for _, matches := range []func(*Namespace) bool{
		func(n *Namespace) bool { return n.Label == word || n.Label == base && base != "" },
		func(n *Namespace) bool { return n.Container == word || slices.Contains(n.Names, word) },
		func(n *Namespace) bool { return err == nil && n.PID == pid },
		func(n *Namespace) bool { return abbreviates(n.Container, word) },
	} {
		var out []*Namespace
		for i := range s.Namespaces {
			if matches(&s.Namespaces[i]) {
				out = append(out, &s.Namespaces[i])
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// minIDPrefix is how many characters of an identifier must be given.
const minIDPrefix = 4

// abbreviates reports whether one of two identifiers begins with the other.
func abbreviates(container, word string) bool {
	return len(word) >= minIDPrefix && container != "" && (strings.HasPrefix(word, container) || strings.HasPrefix(container, word))
}
