package firewall

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// family is an address family. Each has a table of its own, with the same sets and chains.
type family struct {
	id        byte // NFPROTO_…
	name      string
	addrBytes int
	addr      field
	// Offsets in struct iphdr or struct ipv6hdr.
	saddr, daddr uint32
	// router is where duplicates of packets are sent to. Its last byte is the number of the bit
	// in the table's mark. Nobody has this address: it is from a range that is reserved (RFC 3927
	// section 2.1) or where packets are discarded (RFC 6666).
	router netip.Prefix
}

var (
	ipv4 = family{id: unix.NFPROTO_IPV4, name: "ip", addrBytes: 4, saddr: 12, daddr: 16, addr: field{nftables.TypeIPAddr, bigEndian},
		router: netip.MustParsePrefix("169.254.255.0/24")}
	ipv6 = family{id: unix.NFPROTO_IPV6, name: "ip6", addrBytes: 16, saddr: 8, daddr: 24, addr: field{nftables.TypeIP6Addr, bigEndian},
		router: netip.MustParsePrefix("100::/64")}
)

var families = []family{ipv4, ipv6}

// has reports whether an address belongs to the family.
func (f family) has(a netip.Addr) bool { return a.Is4() == (f.id == unix.NFPROTO_IPV4) }

// field is one part of a key or a value. nft prints it by its type and byte order.
type field struct {
	kind  nftables.SetDatatype
	order uint32
}

// Byte orders in the user data of a set (enum byteorder, nftables' include/datatype.h).
const (
	noOrder   = 0 // of concatenations and verdicts
	hostOrder = 1
	bigEndian = 2
)

// deviceBytes is IFNAMSIZ.
const deviceBytes = unix.IFNAMSIZ

var (
	device   = field{nftables.TypeIFName, hostOrder}
	protocol = field{nftables.TypeInetProto, bigEndian}
	port     = field{nftables.TypeInetService, bigEndian}
	icmp6    = field{nftables.TypeICMP6Type, bigEndian}
)

// set is a set or map of a table.
type set struct {
	name     string
	key      []field
	value    []field  // of a map
	verdicts bool     // the values are verdicts
	interval bool     // elements are ranges of keys
	fixed    []string // the elements' keys, which never change
	needs    feature  // without it, tables do not have the set
}

func (s set) isMap() bool { return s.verdicts || len(s.value) > 0 }

// sets returns the sets of a table, in the order in which they are made. The comments tell
// which rules use them; see chains.
func (f family) sets(l layout) []set {
	return slices.DeleteFunc(f.allSets(), func(s set) bool { return !l.has(s.needs) })
}

// allSets returns the sets of a table with all features.
func (f family) allSets() []set {
	address := []field{protocol, f.addr, port}
	anywhere := []field{protocol, port}
	target := []field{f.addr, port}
	flow := []field{f.addr, f.addr, protocol, port}
	all := []set{
		{name: setDevices, key: []field{device}},
		{name: setOpen, key: []field{device}},
		{name: setMasquerade, key: []field{device}},
		{name: setOutbound, key: []field{device, f.addr}, value: []field{f.addr}},
		{name: setAccess, key: []field{device}, verdicts: true},
		{name: setSources, key: []field{device, f.addr}},
		{name: setGateways, key: []field{device, f.addr}},
		{name: setAllowed, key: []field{f.addr, f.addr}, verdicts: true, interval: true},
		{name: setFlows, key: flow, verdicts: true, interval: true},
		{name: setInbound, key: flow, verdicts: true, interval: true},
		{name: setResolvers, key: flow, value: target},
		{name: setPorts, key: address, value: target},
		{name: setPortsAnywhere, key: anywhere, value: target},
		{name: setDirect, key: address, value: target},
		{name: setDirectAnywhere, key: anywhere, value: target},
		{name: setJudged, key: address},
		{name: setJudgedAnywhere, key: anywhere},
		{name: setVRFs, needs: inVRFs, key: []field{device}},
		{name: setMasqueradeVRF, needs: inVRFs, key: []field{device, f.addr}},
		{name: setPortsVRF, needs: inVRFs, key: address, value: target},
		{name: setPortsAnywhereVRF, needs: inVRFs, key: anywhere, value: target},
		{name: setJudgedVRF, needs: inVRFs, key: slices.Concat([]field{device}, address)},
		{name: setJudgedAnywhereVRF, needs: inVRFs, key: slices.Concat([]field{device}, anywhere)},
	}
	all = append(all,
		set{name: setRemote, needs: ofSeveral, key: []field{device, f.addr}, interval: true},
		set{name: setOverlays, needs: ofSeveral, key: []field{device}},
		set{name: setHosts, needs: ofSeveral, key: []field{f.addr}},
		set{name: setRelays, needs: ofSeveral, key: []field{f.addr}, value: []field{f.addr}},
		set{name: setWays, needs: ofSeveral, key: []field{device}},
		set{name: setSealed, needs: withSealed, key: []field{protocol, f.addr}, interval: true}, // of one field alone, ranges have another form
	)
	if f.id == unix.NFPROTO_IPV6 {
		all = append(all, set{name: setNeighbours, key: []field{icmp6}, fixed: neighbourMessages})
	}
	return all
}

// Names of sets.
const (
	setDevices        = "own-devices"     // the devices of all networks
	setOpen           = "open-devices"    // those of networks that are not internal
	setMasquerade     = "nat-devices"     // those of networks that are masqueraded
	setOutbound       = "outbound"        // those of endpoints that leave the host with a fixed address
	setAccess         = "host-access"     // what of the host a device's network reaches
	setSources        = "sources"         // the addresses of the endpoints behind a device
	setGateways       = "gateways"        // the host's addresses in a device's network
	setAllowed        = "allowed"         // which prefixes reach which
	setFlows          = "flows"           // connections of endpoints that rules accept or drop
	setInbound        = "inbound-flows"   // connections of others to endpoints that rules accept or drop
	setResolvers      = "resolvers"       // DNS queries of endpoints to others that a gateway answers
	setPorts          = "ports"           // published ports at one address
	setPortsAnywhere  = "ports-anywhere"  // published ports at all addresses
	setDirect         = "direct"          // those of setPorts that bypass the host's firewall
	setDirectAnywhere = "direct-anywhere" // those of setPortsAnywhere that do
	setJudged         = "judged"          // those of setPorts that obey the host's firewall
	setJudgedAnywhere = "judged-anywhere" // those of setPortsAnywhere that do
	setNeighbours     = "neighbours"      // ICMPv6 types of neighbour and listener discovery
	// Of networks in a VRF:
	setVRFs              = "vrfs"                // the VRFs
	setMasqueradeVRF     = "nat-sources-vrf"     // the addresses of endpoints that are masqueraded
	setPortsVRF          = "ports-vrf"           // published ports at one address
	setPortsAnywhereVRF  = "ports-anywhere-vrf"  // published ports at all addresses of the VRF
	setJudgedVRF         = "judged-vrf"          // those of setPortsVRF, by VRF
	setJudgedAnywhereVRF = "judged-anywhere-vrf" // those of setPortsAnywhereVRF, by VRF
	// Of networks of several hosts:
	setRemote   = "remote"          // the addresses of other hosts' endpoints, by the device that leads to them
	setWays     = "remote-devices"  // those devices
	setOverlays = "overlay-devices" // those that lead to nothing else
	setHosts    = "other-hosts"     // the addresses of other hosts themselves
	setRelays   = "relays"          // this host's address for other hosts' endpoints to which published ports lead
	setSealed   = "sealed"          // the addresses of other hosts' endpoints that only these devices lead to
)

// neighbourMessages are the ICMPv6 types without which no IPv6 host works: multicast listener
// query, report and done, router and neighbour solicitation, neighbour advertisement, and
// version 2 of the report (RFC 4861, RFC 2710, RFC 3810).
var neighbourMessages = []string{"\x82", "\x83", "\x84", "\x85", "\x87", "\x88", "\x8f"}

// bytesOf returns the length of a key or value. Each field starts at a multiple of 4.
func bytesOf(fields []field) (n int) {
	if len(fields) == 1 {
		return int(fields[0].kind.Bytes)
	}
	for _, f := range fields {
		n += padded(int(f.kind.Bytes))
	}
	return n
}

func padded(n int) int { return (n + 3) &^ 3 }

// typeOf returns what nft calls the type of a key or value.
func typeOf(fields []field) (n uint32) {
	for _, f := range fields {
		n = n<<nftables.SetConcatTypeBits | f.kind.GetNFTMagic()
	}
	return n
}

func orderOf(fields []field) uint32 {
	if len(fields) == 1 {
		return fields[0].order
	}
	return noOrder
}

// verdictType marks a map of verdicts (NFT_DATA_VERDICT).
const verdictType = 0xffffff00

// flags returns NFTA_SET_FLAGS.
func (s set) flags() (n uint32) {
	if s.isMap() {
		n |= unix.NFT_SET_MAP
	}
	if s.interval {
		n |= unix.NFT_SET_INTERVAL | nftables.NFT_SET_CONCAT
	}
	return n
}

// addSet makes a set.
func (b *batch) addSet(table string, f family, s set, id int) {
	b.change(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, f, "add set "+s.name)
	b.string(unix.NFTA_SET_TABLE, table)
	b.string(unix.NFTA_SET_NAME, s.name)
	b.uint32(unix.NFTA_SET_FLAGS, s.flags())
	b.uint32(unix.NFTA_SET_KEY_TYPE, typeOf(s.key))
	b.uint32(unix.NFTA_SET_KEY_LEN, uint32(bytesOf(s.key)))
	switch {
	case s.verdicts:
		b.uint32(unix.NFTA_SET_DATA_TYPE, verdictType)
		b.uint32(unix.NFTA_SET_DATA_LEN, 0)
	case s.isMap():
		b.uint32(unix.NFTA_SET_DATA_TYPE, typeOf(s.value))
		b.uint32(unix.NFTA_SET_DATA_LEN, uint32(bytesOf(s.value)))
	}
	b.uint32(unix.NFTA_SET_ID, uint32(id))
	if s.interval {
		desc := b.nest(unix.NFTA_SET_DESC)
		fields := b.nest(nftables.NFTA_SET_DESC_CONCAT)
		for _, f := range s.key {
			one := b.nest(unix.NFTA_LIST_ELEM)
			b.uint32(setFieldLen, f.kind.Bytes)
			b.close(one)
		}
		b.close(fields)
		b.close(desc)
	}
	b.bytes(unix.NFTA_SET_USERDATA, s.userdata())
}

// setFieldLen is NFTA_SET_FIELD_LEN (enum nft_set_field_attributes).
const setFieldLen = 1

// userdata makes nft print keys and values properly. It aborts if the byte order of verdicts
// is not 0.
func (s set) userdata() (b []byte) {
	number := func(kind byte, n uint32) {
		b = native.AppendUint32(append(b, kind, 4), n)
	}
	number(0, orderOf(s.key)) // NFTNL_UDATA_SET_KEYBYTEORDER
	if s.isMap() {
		number(1, orderOf(s.value)) // NFTNL_UDATA_SET_DATABYTEORDER
	}
	return b
}

// An element is a key of a set, or a range of keys.
type element struct {
	key, end string // end is empty unless the set has intervals
}

// elements are the elements of a set with their values. In a set without values these are
// empty. A verdict is encoded by verdict.
type elements map[element]string

// Verdicts in maps.
const (
	verdictAccept  = "accept"
	verdictDrop    = "drop"
	verdictGateway = "goto " + chainGateway
)

// value appends an element's value.
func (b *batch) value(s set, value string) {
	data := b.nest(unix.NFTA_SET_ELEM_DATA)
	if !s.verdicts {
		b.bytes(unix.NFTA_DATA_VALUE, []byte(value))
		b.close(data)
		return
	}
	verdict := b.nest(unix.NFTA_DATA_VERDICT)
	chain, jumps := strings.CutPrefix(value, "goto ")
	b.uint32(unix.NFTA_VERDICT_CODE, verdictCode(value))
	if jumps {
		b.string(unix.NFTA_VERDICT_CHAIN, chain)
	}
	b.close(verdict)
	b.close(data)
}

// Verdicts in include/uapi/linux/netfilter.h.
const (
	nfDrop   = 0
	nfAccept = 1
)

func verdictCode(value string) uint32 {
	code := int32(unix.NFT_GOTO)
	switch value {
	case verdictAccept:
		code = nfAccept
	case verdictDrop:
		code = nfDrop
	}
	return uint32(code)
}

// elementBytes bounds a list of elements. The length of an attribute is a 16-bit number.
const elementBytes = 60 << 10

// changeElements adds or deletes elements of a set, in as many messages as it takes.
func (b *batch) changeElements(kind uint16, table string, f family, s set, all elements) {
	flags, step := uint16(unix.NLM_F_CREATE|unix.NLM_F_EXCL), "add elements to set "+s.name
	if kind == unix.NFT_MSG_DELSETELEM {
		flags, step = 0, "delete elements of set "+s.name
	}
	list := -1
	for e, value := range all {
		if list < 0 {
			b.change(kind, flags, f, step)
			b.string(unix.NFTA_SET_ELEM_LIST_TABLE, table)
			b.string(unix.NFTA_SET_ELEM_LIST_SET, s.name)
			list = b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		}
		b.element(s, e, value, kind == unix.NFT_MSG_NEWSETELEM)
		if len(b.buf)-list > elementBytes {
			b.close(list)
			list = -1
		}
	}
	if list >= 0 {
		b.close(list)
	}
}

func (b *batch) element(s set, e element, value string, withValue bool) {
	item := b.nest(unix.NFTA_LIST_ELEM)
	key := b.nest(unix.NFTA_SET_ELEM_KEY)
	b.bytes(unix.NFTA_DATA_VALUE, []byte(e.key))
	b.close(key)
	if s.interval {
		end := b.nest(nftables.NFTA_SET_ELEM_KEY_END)
		b.bytes(unix.NFTA_DATA_VALUE, []byte(e.end))
		b.close(end)
	}
	if s.isMap() && withValue {
		b.value(s, value)
	}
	b.close(item)
}

// The encodings of fields.

func deviceKey(name string) string {
	var b [deviceBytes]byte
	copy(b[:], name)
	return string(b[:])
}

func addrKey(a netip.Addr) string { return string(a.AsSlice()) }

func portKey(n uint16) string { return string(binary.BigEndian.AppendUint16(nil, n)) + "\x00\x00" }

func protocolKey(p uint8) string { return string([]byte{p, 0, 0, 0}) }

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
