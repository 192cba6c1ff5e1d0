package trace

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// ruleText writes a rule for people, much as nft(8) does. Expressions that it has no words for
// it names in brackets. `nft -a list ruleset` shows the rule by its handle.
func ruleText(exprs []expr.Any, family nftables.TableFamily) string {
	var words []string
	regs := map[uint32]string{} // the name of what each register was loaded with
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta:
			if e.SourceRegister {
				words = append(words, metaName(e.Key)+" set …")
			} else {
				regs[e.Register] = metaName(e.Key)
			}
		case *expr.Payload:
			if e.OperationType == expr.PayloadLoad {
				regs[e.DestRegister] = payloadName(e, family)
			} else {
				words = append(words, payloadName(e, family)+" set …")
			}
		case *expr.Ct:
			regs[e.Register] = ctName(e.Key)
		case *expr.Fib:
			regs[e.Register] = "fib"
		case *expr.Bitwise:
			name := regs[e.SourceRegister]
			if ones, ok := prefixLength(e.Mask); ok && isAddress(name) {
				name += "/" + strconv.Itoa(ones)
			}
			regs[e.DestRegister] = name
		case *expr.Cmp:
			words = append(words, comparison(regs[e.Register], e))
		case *expr.Range:
			name := regs[e.Register]
			words = append(words, fmt.Sprintf("%s %s-%s", name, valueText(name, e.FromData), valueText(name, e.ToData)))
		case *expr.Lookup:
			words = append(words, fmt.Sprintf("%s in @%s", regs[e.SourceRegister], e.SetName))
		default:
			words = append(words, statement(e))
		}
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

var metaNames = map[expr.MetaKey]string{
	expr.MetaKeyIIFNAME: "iifname", expr.MetaKeyOIFNAME: "oifname", expr.MetaKeyIIF: "iif", expr.MetaKeyOIF: "oif",
	expr.MetaKeyMARK: "mark", expr.MetaKeyL4PROTO: "l4proto", expr.MetaKeyNFPROTO: "nfproto", expr.MetaKeyPROTOCOL: "protocol",
	expr.MetaKeySKUID: "skuid", expr.MetaKeySKGID: "skgid", expr.MetaKeyPKTTYPE: "pkttype", expr.MetaKeyLEN: "length", expr.MetaKeyCGROUP: "cgroup",
}

func metaName(k expr.MetaKey) string {
	if n, ok := metaNames[k]; ok {
		return n
	}
	return fmt.Sprintf("[meta %d]", k)
}

func ctName(k expr.CtKey) string {
	switch k {
	case expr.CtKeySTATE:
		return "ct state"
	case expr.CtKeySTATUS:
		return "ct status"
	case expr.CtKeyMARK:
		return "ct mark"
	}
	return fmt.Sprintf("[ct %d]", k)
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

// prefixLength returns the length of a mask of leading ones. ok is false for any other mask.
func prefixLength(mask []byte) (ones int, ok bool) {
	ones, size := net.IPMask(mask).Size()
	return ones, size == 8*len(mask) && size > 0
}

var operators = map[expr.CmpOp]string{expr.CmpOpEq: " ", expr.CmpOpNeq: " != ", expr.CmpOpLt: " < ", expr.CmpOpLte: " <= ", expr.CmpOpGt: " > ", expr.CmpOpGte: " >= "}

// comparison writes "name op value". A prefix length in the name goes behind the value.
func comparison(name string, e *expr.Cmp) string {
	bare, prefix, _ := strings.Cut(name, "/")
	if bare == "ct state" && e.Op == expr.CmpOpNeq && strings.Trim(string(e.Data), "\x00") == "" {
		return "ct state …" // compared after a mask: "any of these states"
	}
	v := valueText(bare, e.Data)
	if prefix != "" {
		v += "/" + prefix
	}
	return bare + operators[e.Op] + v
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

// statement writes an expression that is neither a load nor a comparison.
func statement(e expr.Any) string {
	switch e := e.(type) {
	case *expr.Verdict:
		return verdicts[e.Kind] + e.Chain
	case *expr.Counter:
		return fmt.Sprintf("counter packets %d", e.Packets)
	case *expr.NAT:
		if e.Type == expr.NATTypeDestNAT {
			return "dnat"
		}
		return "snat"
	case *expr.Match:
		return xtMatch(e)
	case *expr.Target:
		return e.Name
	}
	name := strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr."))
	if text, ok := statements[name]; ok {
		return text
	}
	return "[" + name + "]"
}

// xtMatch writes a match of iptables-nft.
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
