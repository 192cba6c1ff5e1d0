package firewall

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// chain is a chain of a table with its rules.
type chain struct {
	name  string
	needs feature // without it, tables do not have the chain
	base  *hook   // nil: only other chains lead here
	rules []rule
}

// hook attaches a chain to the packets of the kernel.
type hook struct {
	kind     string // "filter" or "nat"
	number   uint32 // NF_INET_…
	priority int32
}

// rule is one rule. Every rule is one that nft can print and read again, because people save
// what nft prints.
type rule struct {
	comment string
	needs   feature // without it, tables do not have the rule
	exprs   []expr.Any
}

// Registers of expressions. A concatenation takes consecutive registers of 4 bytes.
const (
	reg = unix.NFT_REG_1
	// word0 to word3 are the four parts of reg.
	word0 = unix.NFT_REG32_00
)

// when starts a rule. Its parts are matches, in order, and at last a verdict or an action.
func when(comment string, parts ...[]expr.Any) rule {
	r := rule{comment: comment}
	for _, p := range parts {
		r.exprs = append(r.exprs, p...)
	}
	return r
}

// feature is something for which a table needs more than the usual sets, chains and rules. Without it, packets
// meet fewer rules. Features are bits.
type feature uint8

const (
	inVRFs     feature = 1 << iota // there are networks in a VRF
	ofSeveral                      // there are networks of several hosts
	withSealed                     // some of their addresses are sealed
)

// ifVRFs leaves the rule out of tables without networks in a VRF.
func (r rule) ifVRFs() rule { return r.ifHas(inVRFs) }

// ifSeveral leaves the rule out of tables without networks of several hosts.
func (r rule) ifSeveral() rule { return r.ifHas(ofSeveral) }

// ifSealed leaves the rule out of tables without sealed addresses.
func (r rule) ifSealed() rule { return r.ifHas(withSealed) }

func (r rule) ifHas(f feature) rule {
	r.needs |= f
	return r
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() []expr.Any   { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// reject drops the packet and tells its sender that this is prohibited.
func (f family) reject() []expr.Any {
	const adminProhibited4, adminProhibited6 = 13, 1 // RFC 1812 section 5.2.7.1, RFC 4443 section 3.1
	code := uint8(adminProhibited4)
	if f.id == unix.NFPROTO_IPV6 {
		code = adminProhibited6
	}
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}

func masquerade() []expr.Any {
	return []expr.Any{&expr.Masq{}}
}

func jumpTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

// callTo continues in another chain, and after that here.
func callTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// The values that a key is made of. Each is loaded into the register that follows.

type load struct {
	bytes int
	into  func(register uint32) expr.Any
}

func meta(key expr.MetaKey, bytes int) load {
	return load{bytes, func(r uint32) expr.Any { return &expr.Meta{Key: key, Register: r} }}
}

func payload(base expr.PayloadBase, offset, bytes uint32) load {
	return load{int(bytes), func(r uint32) expr.Any {
		return &expr.Payload{DestRegister: r, Base: base, Offset: offset, Len: bytes}
	}}
}

func iifname() load { return meta(expr.MetaKeyIIFNAME, deviceBytes) }
func oifname() load { return meta(expr.MetaKeyOIFNAME, deviceBytes) }
func l4proto() load { return meta(expr.MetaKeyL4PROTO, 1) }

// sdifname is the name of the device by which a packet came into a VRF; its iifname is that of the VRF then.
// For a packet of the host's own that is the VRF as well. Only packets that are forwarded or are for the host
// have it (Linux 5.6).
func sdifname() load {
	const sdifname = 34 // NFT_META_SDIFNAME (enum nft_meta_keys)
	return meta(sdifname, deviceBytes)
}

// fromVRF matches packets that came in by a device in a VRF, once they are routed (Linux 5.1).
func fromVRF() []expr.Any {
	const iifkind = 26 // NFT_META_IIFKIND
	return isDevice(meta(iifkind, deviceBytes), "vrf")
}

// dport is the destination port of TCP, UDP and SCTP alike.
func dport() load { return payload(expr.PayloadBaseTransportHeader, 2, 2) }

func sport() load { return payload(expr.PayloadBaseTransportHeader, 0, 2) }

func (f family) source() load {
	return payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.addrBytes))
}

func (f family) destination() load {
	return payload(expr.PayloadBaseNetworkHeader, f.daddr, uint32(f.addrBytes))
}

// key loads a concatenation into reg and what follows.
func key(loads []load) (exprs []expr.Any) {
	word := uint32(word0)
	for _, l := range loads {
		exprs = append(exprs, l.into(register(word)))
		word += uint32(padded(l.bytes) / 4)
	}
	return exprs
}

// register returns the name of a register in the kernel's notation: the first word of a
// register of 16 bytes has the name of that (nft_parse_register, net/netfilter).
func register(word uint32) uint32 {
	if (word-word0)%4 == 0 {
		return unix.NFT_REG_1 + (word-word0)/4
	}
	return word
}

// in matches if a set has the key.
func in(set string, loads ...load) []expr.Any {
	return append(key(loads), &expr.Lookup{SourceRegister: reg, SetName: set})
}

// notIn matches if a set does not have the key.
func notIn(set string, loads ...load) []expr.Any {
	return append(key(loads), &expr.Lookup{SourceRegister: reg, SetName: set, Invert: true})
}

// vmap ends the chain with the verdict that a map has for the key, if any.
func vmap(set string, loads ...load) []expr.Any {
	return append(key(loads), &expr.Lookup{SourceRegister: reg, SetName: set, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true})
}

// dnat gives the packet the destination that a map has for the key, if any: an address and a
// port.
func (f family) dnat(set string, loads ...load) []expr.Any {
	port := register(word0 + uint32(f.addrBytes)/4)
	return append(key(loads),
		&expr.Lookup{SourceRegister: reg, SetName: set, DestRegister: reg, IsDestRegSet: true},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.id), RegAddrMin: reg, RegAddrMax: reg, RegProtoMin: port, RegProtoMax: port},
	)
}

// snat gives the packet the source address that a map has for the key, if any.
func (f family) snat(set string, loads ...load) []expr.Any {
	return append(key(loads),
		&expr.Lookup{SourceRegister: reg, SetName: set, DestRegister: reg, IsDestRegSet: true},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.id), RegAddrMin: reg, RegAddrMax: reg},
	)
}

// is matches if a loaded value equals data.
func is(l load, data ...byte) []expr.Any {
	return []expr.Any{l.into(reg), &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}}
}

func isNot(l load, data ...byte) []expr.Any {
	return []expr.Any{l.into(reg), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: data}}
}

// isDevice matches if a loaded name is that of a device.
func isDevice(l load, name string) []expr.Any { return is(l, []byte(deviceKey(name))...) }

func isNotDevice(l load, name string) []expr.Any { return isNot(l, []byte(deviceKey(name))...) }

// masked matches if a loaded value equals data in the bits of mask.
func masked(l load, mask, data []byte) []expr.Any {
	return []expr.Any{
		l.into(reg),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(l.bytes), Mask: mask, Xor: make([]byte, l.bytes)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data},
	}
}

// toPort matches the destination port of a protocol.
func toPort(proto byte, port uint16) []expr.Any {
	return append(is(l4proto(), proto), is(dport(), byte(port>>8), byte(port))...)
}

// state matches packets in one of the states of connections (a mask of state…).
func state(mask uint32) []expr.Any { return ctBits(expr.CtKeySTATE, mask) }

// notNew matches packets that do not start a connection.
func notNew() []expr.Any {
	return isNot(load{4, func(r uint32) expr.Any { return &expr.Ct{Key: expr.CtKeySTATE, Register: r} }}, native.AppendUint32(nil, stateNew)...)
}

// translated matches packets of connections whose destination was translated.
func translated() []expr.Any { return ctBits(expr.CtKeySTATUS, ipsDstNAT) }

// ctBits matches if one of the bits in a mask is set.
func ctBits(key expr.CtKey, mask uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native.AppendUint32(nil, mask), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

// Bits of the state and status of a connection (NF_CT_STATE_BIT and IPS_… in
// include/uapi/linux/netfilter/nf_conntrack_common.h).
const (
	stateInvalid     = 1 << 0
	stateEstablished = 1 << 1
	stateRelated     = 1 << 2
	stateNew         = 1 << 3
	ipsSrcNAT        = 1 << 4
	ipsDstNAT        = 1 << 5
)

// toLocal matches packets to an address of the host.
func toLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: native.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}

// setMark sets bits of the packet's mark.
func setMark(bits uint32) []expr.Any { return changeMark(^bits, bits) }

// clearMark clears bits of the packet's mark.
func clearMark(bits uint32) []expr.Any { return changeMark(^bits, 0) }

func changeMark(mask, xor uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native.AppendUint32(nil, mask), Xor: native.AppendUint32(nil, xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
	}
}

// marked matches packets that have a bit in their mark.
func marked(bit uint32) []expr.Any {
	b := native.AppendUint32(nil, bit)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: b, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: b},
	}
}

// ended matches packets of TCP connections that EndConnections has ended.
func ended() []expr.Any {
	b := native.AppendUint32(nil, endedMark)
	return masked(load{4, func(r uint32) expr.Any { return &expr.Ct{Key: expr.CtKeyMARK, Register: r} }}, b, b)
}

const tcpFlagsAt, tcpSYN = 13, 1 << 1 // in struct tcphdr

// midstream matches TCP segments that don't start a connection.
func midstream() []expr.Any { return tcpWith(tcpSYN, 0) }

// begins matches the first TCP segment of each end of a connection.
func begins() []expr.Any { return tcpWith(tcpSYN, tcpSYN) }

// tcpWith matches TCP segments with certain flags of a mask.
func tcpWith(mask, flags byte) []expr.Any {
	return append(is(l4proto(), unix.IPPROTO_TCP), masked(payload(expr.PayloadBaseTransportHeader, tcpFlagsAt, 1), []byte{mask}, []byte{flags})...)
}

// fitSegments limits the segments of a connection that begins to what the routes in both directions pass. The kernel
// never makes them larger by that (nft_exthdr_tcp_set_eval, net/netfilter/nft_exthdr.c).
func fitSegments() []expr.Any {
	const maxseg, sizeAt, bytes = 2, 2, 2 // option "maximum segment size" (RFC 9293 section 3.2)
	return []expr.Any{
		&expr.Rt{Register: reg, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: bytes, Size: bytes},
		&expr.Exthdr{SourceRegister: reg, Op: expr.ExthdrOpTcpopt, Type: maxseg, Offset: sizeAt, Len: bytes},
	}
}

// duplicate sends a copy of the packet to a router.
func duplicate(router netip.Addr) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: reg, Data: router.AsSlice()}, &expr.Dup{RegAddr: reg}}
}

// clearFragmentOffset clears the field of struct iphdr that has it and the flag "don't
// fragment".
func clearFragmentOffset() []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: []byte{0, 0}},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2,
			CsumType: expr.CsumTypeInet, CsumOffset: 10},
	}
}
