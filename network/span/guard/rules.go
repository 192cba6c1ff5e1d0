package guard

import (
	"cmp"
	"fmt"
	"slices"

	"cleat/link"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// hook is where a chain is called.
type hook struct {
	at       *nftables.ChainHook
	priority nftables.ChainPriority
}

var hooks = map[string]hook{
	chainInput:     {nftables.ChainHookInput, beforeFirewall},
	chainForward:   {nftables.ChainHookForward, beforeFirewall},
	chainRawInput:  {nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw}, // before connections are tracked
	chainRawOutput: {nftables.ChainHookOutput, *nftables.ChainPriorityRaw},
}

// beforeFirewall is before the chains of package firewall, which have NF_IP_PRI_FILTER.
const beforeFirewall = -10

// rule is a rule: what it matches, and what it does.
type rule struct {
	chain   string
	comment string
	exprs   []expr.Any
}

// kernelSets returns the table's sets.
func (w table) kernelSets() []*nftables.Set {
	address := nftables.TypeIPAddr
	if w.kernel.Family == nftables.TableFamilyIPv6 {
		address = nftables.TypeIP6Addr
	}
	node := nftables.MustConcatSetType(address, nftables.TypeInetService)
	return []*nftables.Set{
		{Table: w.kernel, Name: setHosts, KeyType: address},
		{Table: w.kernel, Name: setNodes, KeyType: node, Concatenation: true},
	}
}

// rules returns the table's rules. Their comments say all that they depend on. Few packets meet more than those of the
// chains at hooks.
func (w table) rules() (all []rule) {
	add := func(chain, comment string, do expr.Any, exprs ...[]expr.Any) {
		all = append(all, rule{chain, comment, append(slices.Concat(exprs...), do)})
	}
	drop := func(chain, comment string, exprs ...[]expr.Any) {
		add(chain, comment, &expr.Verdict{Kind: expr.VerdictDrop}, exprs...)
	}
	on := func(chain, in, comment string, exprs ...[]expr.Any) { // the others go on in a chain
		add(chain, comment, &expr.Verdict{Kind: expr.VerdictGoto, Chain: in}, exprs...)
	}
	froms := map[string][]expr.Any{} // packets of containers
	for _, prefix := range devices {
		froms[prefix+"*"] = slices.Concat(meta(expr.MetaKeyIIFNAME, 1), is([]byte(prefix)))
	}
	for _, name := range w.Devices {
		froms[name] = slices.Concat(meta(expr.MetaKeyIIFNAME, 1), is([]byte(name+"\x00")))
	}
	on(chainForward, chainToHosts, "to other hosts", w.in(setHosts, false, w.destination(1)))
	if w.has(w.Local) {
		on(chainForward, chainToHosts, "to "+w.Local.String(), w.destination(1), is(w.Local.AsSlice()))
	}
	for kind, at := range encapsulations {
		on(chainInput, chainDatagrams, kind, toPort(unix.IPPROTO_UDP, at))
		what, match := fmt.Sprintf("%s %d", kind, w.VNI), slices.Concat(toPort(unix.IPPROTO_UDP, at), w.identified())
		if w.Geneve && at == link.GenevePort {
			what, match = kind+", any identifier", toPort(unix.IPPROTO_UDP, at)
		}
		add(chainRawOutput, what+" to a host", &expr.Notrack{}, match, w.in(setHosts, false, w.destination(1)))
		add(chainRawInput, what+" of a host", &expr.Notrack{}, match, w.in(setHosts, false, w.source(1)))
		drop(chainDatagrams, what+" of no host", match, w.in(setHosts, true, w.source(1)))
		if w.has(w.Local) {
			drop(chainDatagrams, fmt.Sprintf("%s to another address than %s", what, w.Local), match, w.destination(1), isNot(w.Local.AsSlice()))
		}
		drop(chainToHosts, what+" of no host", match, w.in(setHosts, true, w.source(1)))
		for device, from := range froms {
			drop(chainToHosts, fmt.Sprintf("%s, %s", device, what), from, match)
		}
	}
	for name, protocol := range map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP} {
		on(chainInput, chainToNode, fmt.Sprintf("%s port %d", name, w.Port), toPort(protocol, w.Port))
		for device, from := range froms {
			drop(chainToHosts, fmt.Sprintf("%s to nodes, %s", device, name), from, meta(expr.MetaKeyL4PROTO, 1), is([]byte{protocol}),
				w.in(setNodes, false, w.destination(first), port(w.second())))
		}
	}
	for device, from := range froms {
		drop(chainToNode, device, from)
	}
	slices.SortFunc(all, func(a, b rule) int { return cmp.Compare(a.comment, b.comment) })
	return all
}

// first is the first of the registers of 4 bytes, of which a key of several fields takes some (NFT_REG32_00).
const first = 8

// second returns the register behind an address.
func (w table) second() uint32 { return first + w.bytes()/4 }

func (w table) bytes() uint32 {
	if w.kernel.Family == nftables.TableFamilyIPv6 {
		return 16
	}
	return 4
}

func meta(key expr.MetaKey, register uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: register}}
}

// is compares the beginning of register 1.
func is(value []byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}
func isNot(value []byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: value}}
}

// in matches what is in a set or, with not, what is not.
func (w table) in(set string, not bool, key ...[]expr.Any) []expr.Any {
	register := uint32(1)
	if len(key) > 1 {
		register = first
	}
	return append(slices.Concat(key...), &expr.Lookup{SourceRegister: register, SetName: set, Invert: not})
}

// Offsets of addresses in struct iphdr and ipv6hdr.
func (w table) source(register uint32) []expr.Any {
	if w.kernel.Family == nftables.TableFamilyIPv6 {
		return payload(expr.PayloadBaseNetworkHeader, 8, 16, register)
	}
	return payload(expr.PayloadBaseNetworkHeader, 12, 4, register)
}

func (w table) destination(register uint32) []expr.Any {
	if w.kernel.Family == nftables.TableFamilyIPv6 {
		return payload(expr.PayloadBaseNetworkHeader, 24, 16, register)
	}
	return payload(expr.PayloadBaseNetworkHeader, 16, 4, register)
}

func payload(base expr.PayloadBase, offset, length, register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}}
}

// port is the destination port of TCP and UDP.
func port(register uint32) []expr.Any {
	return payload(expr.PayloadBaseTransportHeader, 2, 2, register)
}

// encapsulations are the UDP ports of the protocols by which hosts pass packets on.
var encapsulations = map[string]uint16{"VXLAN": link.VXLANPort, "Geneve": link.GenevePort}

// toPort matches what is sent to a port of TCP or UDP.
func toPort(protocol byte, at uint16) []expr.Any {
	return slices.Concat(
		meta(expr.MetaKeyL4PROTO, 1), is([]byte{protocol}),
		port(1), is(binaryutil.BigEndian.PutUint16(at)),
	)
}

// identified matches datagrams of the cluster: in VXLAN as in Geneve (RFC 8926), the identifier is behind the UDP header
// and four other bytes.
func (w table) identified() []expr.Any {
	const identifier, bytes = 8 + 4, 3
	return slices.Concat(
		payload(expr.PayloadBaseTransportHeader, identifier, bytes, 1), is([]byte{byte(w.VNI >> 16), byte(w.VNI >> 8), byte(w.VNI)}),
	)
}

func userData(comment string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, comment)
}

func comment(r *nftables.Rule) string {
	text, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return text
}
