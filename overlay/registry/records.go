package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The current version of all records.
const version = 1

// Cluster is what all hosts have in common.
type Cluster struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	VNI     int       `json:"vni"` // of the hosts' VXLAN devices
	// Dataplane is how hosts reach each other's containers, unless they have one of their own; "": a default.
	Dataplane string `json:"dataplane,omitempty"`
	// Incarnation changes whenever a registry is restored from a backup (Restore). Later ones are greater as strings.
	Incarnation string `json:"incarnation,omitempty"`
	// Recovered is the last incarnation that has again what hosts know and the backup lacked.
	Recovered string `json:"recovered,omitempty"`
	// External means that the registry is an etcd which no host of the cluster runs. Host.Member and Host.Votes then
	// mean that a host has access to it, for other hosts too.
	External bool `json:"external,omitempty"`
	// ForgetAfter is how long a host must be dead until other hosts may have its addresses; 0: a default, and less: for
	// ever.
	ForgetAfter time.Duration `json:"forget_after,omitempty"`
	// Encryption is whether hosts reach each other's containers by WireGuard only: "", EncryptionPending or
	// EncryptionOn.
	Encryption string `json:"encryption,omitempty"`
	// Generation is that of the keys of WireGuard with which hosts send, from 1; 0: the first one.
	Generation int       `json:"generation,omitempty"`
	Rotated    time.Time `json:"rotated,omitzero"` // when the generation began
}

// States of Cluster.Encryption.
const (
	EncryptionPending = "pending" // once all hosts have keys
	EncryptionOn      = "on"      // it stays on
)

// WireGuard is what other hosts need to know of a host's WireGuard. The zero value is none.
type WireGuard struct {
	First   int       `json:"first,omitempty"`   // generation of the first key; 0: no keys
	Keys    [2]string `json:"keys,omitzero"`     // public, in base64: of First, and of the next generation
	Sending int       `json:"sending,omitempty"` // the generation with which the host sends; it accepts both
	Only    bool      `json:"only,omitempty"`    // the host sends no packets of containers in another way
	Problem string    `json:"problem,omitempty"` // why the host has no keys
}

// SlotOf returns which of a host's two devices has the keys of a generation.
func SlotOf(generation int) int { return generation % 2 }

// Host is a host of the cluster.
type Host struct {
	Version int        `json:"version"`
	Name    string     `json:"name"`
	Pin     string     `json:"pin"`               // of its key
	Address netip.Addr `json:"address"`           // at which the other hosts reach it
	Port    uint16     `json:"port"`              // of its gate
	MAC     string     `json:"mac"`               // of its VXLAN device
	MTU     int        `json:"mtu"`               // of the device of Address, in bytes
	Member  bool       `json:"member,omitempty"`  // runs a member of the registry, or is about to
	Votes   bool       `json:"votes,omitempty"`   // its member votes, and serves clients
	Leaving bool       `json:"leaving,omitempty"` // it leaves the cluster, when its member is not needed any more
	Joined  time.Time  `json:"joined"`
	// Dataplane is how this host and others reach each other's containers; "": that of the cluster.
	Dataplane string    `json:"dataplane,omitempty"`
	WireGuard WireGuard `json:"wireguard,omitzero"`
	// What follows is that of a host that tunnels lead to. Uplinks are its addresses, each by a device of its own.
	Uplinks     []netip.Addr      `json:"uplinks,omitempty"`
	TunnelKey   string            `json:"tunnel_key,omitempty"`   // public, in the form of tunnel files
	TunnelPorts map[string]uint16 `json:"tunnel_ports,omitempty"` // UDP, of the tunnels' ends on this host, by the other host
}

// Gate returns the address of the host's gate.
func (h Host) Gate() netip.AddrPort { return netip.AddrPortFrom(h.Address, h.Port) }

// Alive says that a host runs. Its key vanishes a few seconds after the host.
type Alive struct {
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
	Boot    string    `json:"boot"`    // boot id of the kernel
	Program string    `json:"program"` // its version
}

// Network is a network that all hosts of the cluster have.
type Network struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Subnets []Subnet  `json:"subnets"`
	// Spec is the rest: what the hosts' dataplanes need to make the network. The registry does not read it.
	Spec json.RawMessage `json:"spec,omitempty"`
}

// Subnet is a range of addresses of a network, of which each host has blocks.
type Subnet struct {
	Prefix    netip.Prefix `json:"prefix"`
	BlockBits int          `json:"block_bits"` // prefix length of blocks
}

// Block is a part of a network's addresses, which one host gives to its endpoints.
type Block struct {
	Version int          `json:"version"`
	Network string       `json:"network"`
	Prefix  netip.Prefix `json:"prefix"`
	Host    string       `json:"host"`
}

// Endpoint is a container on a network.
type Endpoint struct {
	Version   int               `json:"version"`
	Network   string            `json:"network"`
	Host      string            `json:"host"`
	ID        string            `json:"id"`
	Container string            `json:"container"` // e.g. "docker:api"
	Names     []string          `json:"names"`
	Addresses []netip.Addr      `json:"addresses"`
	Labels    map[string]string `json:"labels,omitempty"`
	Ports     []Port            `json:"ports,omitempty"`
}

// Port is a published port of an endpoint, or a range of them.
type Port struct {
	Protocol string     `json:"protocol"`
	Port     uint16     `json:"port"` // of the container
	Count    uint16     `json:"count,omitempty"`
	HostAddr netip.Addr `json:"host_address,omitzero"`
	HostPort uint16     `json:"host_port,omitempty"`
	All      bool       `json:"everywhere,omitempty"` // published on all hosts
	Bypass   bool       `json:"bypass_firewall,omitempty"`
}

// Tombstone is a host that was removed. The cluster never admits its key again, also not after the registry was
// restored from a backup that has the host.
type Tombstone struct {
	Version int       `json:"version"`
	Host    string    `json:"host"`
	Pin     string    `json:"pin"` // of its key
	Removed time.Time `json:"removed"`
}

// Token is an invitation to the cluster.
type Token struct {
	Version int       `json:"version"`
	Hash    string    `json:"hash"` // of its secret
	Expires time.Time `json:"expires"`
}

// Keys.
const (
	everything   = "/cleat/"
	layouts      = everything + "v"
	root         = layouts + "1/"
	clusterKey   = root + "cluster"
	hostsKey     = root + "hosts/"
	aliveKey     = root + "alive/"
	networksKey  = root + "networks/"
	blocksKey    = root + "blocks/"
	endpointsKey = root + "endpoints/"
	tokensKey    = root + "tokens/"
	removedKey   = root + "removed/"
	progressKey  = root + "progress/"
)

func (b Block) key() string    { return blocksKey + b.Network + "/" + b.Prefix.String() }
func (e Endpoint) key() string { return endpointsKey + e.Network + "/" + e.Host + "/" + e.ID }

// LaterVersionError means that a later version of this program has written a record.
type LaterVersionError struct {
	Key     string
	Version int
}

func (e *LaterVersionError) Error() string {
	return fmt.Sprintf("%s has version %d, which needs a later cleat-node", e.Key, e.Version)
}

// layoutOf returns the version of the layout to which a key belongs; 0 if it belongs to none.
func layoutOf(key string) int {
	rest, _ := strings.CutPrefix(key, layouts)
	number, _, _ := strings.Cut(rest, "/")
	n, err := strconv.Atoi(number)
	if err != nil {
		return 0
	}
	return n
}

// A MalformedError means that something else than this program has written a record, or has changed it.
type MalformedError struct{ Key, Reason string }

func (e *MalformedError) Error() string { return e.Key + " is no record of cleat-node: " + e.Reason }

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // all fields are encodable
	}
	return string(text)
}

// withUnknown returns the text of a record of v's type with the fields of an older text that the type does not have:
// a later version has written them, while hosts are upgraded one after the other.
func withUnknown(text string, older []byte, v any) string {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(older, &fields); err != nil {
		return text
	}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v).Elem()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		delete(fields, name)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		text = strings.TrimSuffix(text, "}") + "," + encode(name) + ":" + string(fields[name]) + "}"
	}
	return text
}

func decode(key string, text []byte, v any) error {
	if e, ok := v.(*Endpoint); ok {
		var quick Endpoint
		if decodeQuickly(text, &quick) && quick.Version <= version && quick.check(key) == "" {
			*e = quick
			return nil
		}
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return &MalformedError{key, err.Error()}
	}
	if head.Version > version {
		return &LaterVersionError{key, head.Version}
	}
	if err := json.Unmarshal(text, v); err != nil {
		return &MalformedError{key, err.Error()}
	}
	if r, ok := v.(interface{ check(key string) string }); ok {
		if reason := r.check(key); reason != "" {
			return &MalformedError{key, reason}
		}
	}
	return nil
}

// differs is why a record is refused that is not the one of its key.
const differs = "the key is that of another record"

// The methods check return why a record with a key can't be one, or "".

func (c *Cluster) check(string) string {
	if c.ID == "" {
		return "the cluster has no id"
	}
	return ""
}

func (h *Host) check(key string) string {
	switch {
	case key != hostsKey+h.Name || h.Name == "" || strings.Contains(h.Name, "/"):
		return differs
	case !h.Address.IsValid() || h.Address.Zone() != "" || h.Port == 0:
		return "the host has no address and port"
	}
	return ""
}

func (n *Network) check(key string) string {
	if key != networksKey+n.Name || n.Name == "" || strings.Contains(n.Name, "/") {
		return differs
	}
	for _, s := range n.Subnets {
		if !s.Prefix.IsValid() || s.Prefix != s.Prefix.Masked() || s.Prefix.Addr().Is4In6() || s.BlockBits < s.Prefix.Bits() || s.BlockBits > s.Prefix.Addr().BitLen() {
			return fmt.Sprintf("blocks of /%d of subnet %s can't be", s.BlockBits, s.Prefix)
		}
	}
	return ""
}

func (t *Tombstone) check(key string) string {
	if key != removedKey+t.Pin || t.Pin == "" {
		return differs
	}
	return ""
}

func (b *Block) check(key string) string {
	if key != b.key() || b.Prefix != b.Prefix.Masked() || b.Host == "" {
		return differs
	}
	return ""
}

func (e *Endpoint) check(key string) string {
	if key != e.key() || e.ID == "" {
		return differs
	}
	return ""
}

// parseKey returns what a key is about: its kind, such as "hosts", and the rest.
func parseKey(key string) (kind, rest string, ok bool) {
	path, ok := strings.CutPrefix(key, root)
	if !ok {
		return "", "", false
	}
	kind, rest, _ = strings.Cut(path, "/")
	return kind, rest, true
}
