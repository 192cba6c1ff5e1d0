package trace

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// truth is whether a rule matches. It is maybe if that depends on ports or states.
type truth int

const (
	no truth = iota
	maybe
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// register is what an expression loaded.
type register struct {
	name  string // for people, such as "ip saddr"
	known bool   // false if the value differs between the packets from A to B
	value []byte
}

// examine returns whether a rule matches, and its text. It runs the expressions as the kernel does
// (net/netfilter/nf_tables_core.c), as far as the packet is known. The text is much like nft(8)'s.
// Expressions without words are named in brackets; `nft -a list ruleset` shows the rule by its
// handle.
func examine(exprs []expr.Any, pkt packet, family nftables.TableFamily) (truth, string) {
	regs := map[uint32]register{}
	result := yes
	var words []string
	for _, e := range exprs {
		t, text := yes, ""
		switch e := e.(type) {
		case *expr.Meta:
			if r := pkt.meta(e.Key); e.SourceRegister {
				text = r.name + " set …"
			} else {
				regs[e.Register] = r
			}
		case *expr.Payload:
			if r := pkt.payload(e, family); e.OperationType == expr.PayloadLoad {
				regs[e.DestRegister] = r
			} else {
				text = r.name + " set …"
			}
		case *expr.Ct:
			if r := (register{name: cmp.Or(ctNames[e.Key], fmt.Sprintf("[ct %d]", e.Key))}); e.SourceRegister {
				text = r.name + " set …"
			} else {
				regs[e.Register] = r
			}
		case *expr.Fib:
			regs[e.Register] = register{name: "fib"}
		case *expr.Immediate:
			regs[e.Register] = register{known: true, value: e.Data}
		case *expr.Bitwise:
			regs[e.DestRegister] = regs[e.SourceRegister].masked(e)
		case *expr.Cmp:
			t, text = regs[e.Register].compare(e)
		case *expr.Range:
			t, text = regs[e.Register].inRange(e)
		case *expr.Lookup:
			t, text = maybe, fmt.Sprintf("%s in @%s", regs[e.SourceRegister].name, e.SetName)
		default:
			t, text = statement(e)
		}
		result = min(result, t)
		words = append(words, strings.Fields(text)...)
	}
	return result, strings.Join(words, " ")
}

func (p packet) meta(key expr.MetaKey) register {
	r := register{name: cmp.Or(metaNames[key], fmt.Sprintf("[meta %d]", key))}
	switch key {
	case expr.MetaKeyNFPROTO:
		r.value = []byte{unix.NFPROTO_IPV4}
		if p.dst.Is6() {
			r.value = []byte{unix.NFPROTO_IPV6}
		}
	case expr.MetaKeyPROTOCOL:
		r.value = p.etherType()
	case expr.MetaKeyIIFNAME:
		r.value = deviceName(p.in)
	case expr.MetaKeyOIFNAME:
		r.value = deviceName(p.out)
	case expr.MetaKeyIIF:
		r.value = binary.NativeEndian.AppendUint32(nil, uint32(p.inIndex))
	case expr.MetaKeyOIF:
		r.value = binary.NativeEndian.AppendUint32(nil, uint32(p.outIndex))
	}
	r.known = r.value != nil
	return r
}

var metaNames = map[expr.MetaKey]string{
	expr.MetaKeyIIFNAME: "iifname", expr.MetaKeyOIFNAME: "oifname", expr.MetaKeyIIF: "iif", expr.MetaKeyOIF: "oif",
	expr.MetaKeyMARK: "mark", expr.MetaKeyL4PROTO: "l4proto", expr.MetaKeyNFPROTO: "nfproto", expr.MetaKeyPROTOCOL: "protocol",
	expr.MetaKeySKUID: "skuid", expr.MetaKeySKGID: "skgid", expr.MetaKeyPKTTYPE: "pkttype", expr.MetaKeyLEN: "length", expr.MetaKeyCGROUP: "cgroup",
}

var ctNames = map[expr.CtKey]string{expr.CtKeySTATE: "ct state", expr.CtKeySTATUS: "ct status", expr.CtKeyMARK: "ct mark"}

func (p packet) etherType() []byte {
	if p.dst.Is4() {
		return []byte{0x08, 0x00} // ETH_P_IP
	}
	return []byte{0x86, 0xdd} // ETH_P_IPV6
}

// deviceName returns a name as the kernel compares it: padded with zeros to IFNAMSIZ.
func deviceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// payload loads bytes of a header. They are known if they lie within one known field.
func (p packet) payload(e *expr.Payload, family nftables.TableFamily) register {
	r := register{name: payloadName(e, family)}
	var fields map[uint32][]byte
	switch {
	case e.Base == expr.PayloadBaseNetworkHeader && p.dst.Is4():
		fields = map[uint32][]byte{12: p.src.AsSlice(), 16: p.dst.AsSlice()} // RFC 791 section 3.1
	case e.Base == expr.PayloadBaseNetworkHeader:
		fields = map[uint32][]byte{8: p.src.AsSlice(), 24: p.dst.AsSlice()} // RFC 8200 section 3
	case e.Base == expr.PayloadBaseLLHeader && family == nftables.TableFamilyBridge:
		fields = map[uint32][]byte{0: p.mac, 12: p.etherType()}
	}
	for offset, field := range fields {
		if e.Offset >= offset && uint64(e.Offset)+uint64(e.Len) <= uint64(offset)+uint64(len(field)) {
			r.known, r.value = true, field[e.Offset-offset:e.Offset-offset+e.Len]
		}
	}
	return r
}

// fieldNames are the header fields that most rules look at, by header and offset.
var fieldNames = map[expr.PayloadBase]map[uint32]string{
	expr.PayloadBaseTransportHeader: {0: "sport", 2: "dport"},
	expr.PayloadBaseLLHeader:        {0: "ether daddr", 6: "ether saddr", 12: "ether type"},
}

// payloadName names a header field. The name of an address ends with the length of its prefix
// if the rule loads only a part of it.
func payloadName(e *expr.Payload, family nftables.TableFamily) string {
	if name := fieldNames[e.Base][e.Offset]; name != "" {
		return name
	}
	name, size := "", uint32(0)
	if e.Base == expr.PayloadBaseNetworkHeader {
		switch {
		case e.Offset == 12 && family != nftables.TableFamilyIPv6:
			name, size = "ip saddr", 4
		case e.Offset == 16 && family != nftables.TableFamilyIPv6 && e.Len <= 4:
			name, size = "ip daddr", 4
		case e.Offset == 8 && e.Len > 1:
			name, size = "ip6 saddr", 16
		case e.Offset == 24 && e.Len > 1:
			name, size = "ip6 daddr", 16
		case e.Offset == 9 && e.Len == 1:
			name, size = "ip protocol", 1
		}
	}
	switch {
	case name == "":
		return fmt.Sprintf("[payload %d,%d,%d]", e.Base, e.Offset, e.Len)
	case e.Len < size:
		return fmt.Sprintf("%s/%d", name, 8*e.Len)
	}
	return name
}

func isAddress(name string) bool {
	return strings.Contains(name, "addr") && strings.HasPrefix(name, "ip")
}

var operators = map[expr.CmpOp]string{expr.CmpOpEq: " ", expr.CmpOpNeq: " != ", expr.CmpOpLt: " < ", expr.CmpOpLte: " <= ", expr.CmpOpGt: " > ", expr.CmpOpGte: " >= "}

// masked applies a mask. A mask of leading ones on an address is appended to its name.
func (r register) masked(e *expr.Bitwise) register {
	out := register{name: r.name}
	if ones, size := net.IPMask(e.Mask).Size(); size > 0 && isAddress(r.name) {
		out.name += "/" + strconv.Itoa(ones)
	}
	if !r.known || len(e.Mask) != len(r.value) || len(e.Xor) != len(r.value) {
		return out
	}
	out.known, out.value = true, make([]byte, len(r.value))
	for i := range out.value {
		out.value[i] = r.value[i]&e.Mask[i] ^ e.Xor[i]
	}
	return out
}

// compare compares as many bytes as the rule gives. Fewer than a device name's 16 are a prefix
// (eth*). In the text a prefix length in the name goes behind the value.
func (r register) compare(e *expr.Cmp) (truth, string) {
	t := maybe
	if r.known && len(r.value) >= len(e.Data) {
		c := slices.Compare(r.value[:len(e.Data)], e.Data)
		t = truthOf(map[expr.CmpOp]bool{
			expr.CmpOpEq: c == 0, expr.CmpOpNeq: c != 0,
			expr.CmpOpLt: c < 0, expr.CmpOpLte: c <= 0, expr.CmpOpGt: c > 0, expr.CmpOpGte: c >= 0,
		}[e.Op])
	}
	name, prefix, _ := strings.Cut(r.name, "/")
	if name == "ct state" && e.Op == expr.CmpOpNeq && strings.Trim(string(e.Data), "\x00") == "" {
		return t, "ct state …" // compared after a mask: "any of these states"
	}
	text := name + operators[e.Op] + valueText(name, e.Data)
	if prefix != "" {
		text += "/" + prefix
	}
	return t, text
}

func (r register) inRange(e *expr.Range) (truth, string) {
	text := fmt.Sprintf("%s %s-%s", r.name, valueText(r.name, e.FromData), valueText(r.name, e.ToData))
	if !r.known || len(r.value) != len(e.FromData) || len(r.value) != len(e.ToData) {
		return maybe, text
	}
	in := slices.Compare(r.value, e.FromData) >= 0 && slices.Compare(r.value, e.ToData) <= 0
	return truthOf(in == (e.Op == expr.CmpOpEq)), text
}

// Values of fields that have names.
var (
	etherTypes  = map[uint16]string{unix.ETH_P_IP: "ip", unix.ETH_P_IPV6: "ip6", unix.ETH_P_ARP: "arp"}
	ipProtocols = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "ipv6-icmp"}
	nfProtocols = map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}
)

// valueText writes bytes in the form that belongs to the field.
func valueText(name string, b []byte) string {
	switch {
	case strings.HasSuffix(name, "ifname"):
		s := strings.TrimRight(string(b), "\x00")
		if len(s) == len(b) && len(b) < unix.IFNAMSIZ {
			s += "*"
		}
		return strconv.Quote(s)
	case isAddress(name):
		size := 4
		if strings.HasPrefix(name, "ip6") {
			size = 16
		}
		full := make([]byte, size)
		copy(full, b)
		a, _ := netip.AddrFromSlice(full)
		return a.String()
	case (name == "sport" || name == "dport") && len(b) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case (name == "l4proto" || name == "ip protocol") && len(b) == 1:
		return cmp.Or(ipProtocols[b[0]], strconv.Itoa(int(b[0])))
	case name == "nfproto" && len(b) == 1:
		return nfProtocols[b[0]]
	case len(b) == 2 && etherTypes[binary.BigEndian.Uint16(b)] != "" && (name == "protocol" || name == "ether type"):
		return etherTypes[binary.BigEndian.Uint16(b)]
	case len(b) == 4:
		return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(b)), 10)
	}
	return fmt.Sprintf("0x%x", b)
}

var verdicts = map[expr.VerdictKind]string{expr.VerdictAccept: "accept", expr.VerdictDrop: "drop", expr.VerdictReturn: "return",
	expr.VerdictJump: "jump ", expr.VerdictGoto: "goto ", expr.VerdictQueue: "queue", expr.VerdictContinue: "continue"}

// statements are expressions without parameters worth printing, by their type.
var statements = map[string]string{"reject": "reject", "masq": "masquerade", "redir": "redirect", "log": "log", "limit": "limit",
	"notrack": "notrack", "tproxy": "tproxy", "flowoffload": "flow add", "immediate": "", "byteorder": ""}

// statement returns whether an expression lets a packet pass that is neither a load nor a
// comparison, and its text.
func statement(e expr.Any) (truth, string) {
	switch e := e.(type) {
	case *expr.Verdict:
		return yes, verdicts[e.Kind] + e.Chain
	case *expr.Counter:
		return yes, fmt.Sprintf("counter packets %d", e.Packets)
	case *expr.NAT:
		if e.Type == expr.NATTypeDestNAT {
			return yes, "dnat"
		}
		return yes, "snat"
	case *expr.Match:
		return maybe, xtMatch(e)
	case *expr.Target:
		return yes, e.Name
	}
	t := yes
	switch e.(type) {
	case *expr.Limit, *expr.Connlimit, *expr.Quota, *expr.Dynset:
		t = maybe
	}
	name := strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr."))
	if text, ok := statements[name]; ok {
		return t, text
	}
	return t, "[" + name + "]"
}

func xtMatch(e *expr.Match) string {
	port := func(p [2]uint16) string {
		if p[0] == p[1] {
			return strconv.Itoa(int(p[0]))
		}
		return fmt.Sprintf("%d-%d", p[0], p[1])
	}
	switch info := e.Info.(type) {
	case *xt.Tcp:
		return "tcp dport " + port(info.DstPorts)
	case *xt.Udp:
		return "udp dport " + port(info.DstPorts)
	}
	return "[" + e.Name + "]"
}
