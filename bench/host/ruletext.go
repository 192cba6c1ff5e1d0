package host

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

func deviceIndex(index int) register {
	return register{true, binary.NativeEndian.AppendUint32(nil, uint32(index))}
}

// ruleText writes a rule much as nft(8) does, for people; what it has no words
// for it names in brackets. `nft -a list ruleset` shows the rule by its handle.
func ruleText(exprs []expr.Any, family nftables.TableFamily) string {
	var words []string
	regs := map[uint32]string{} // what each register was loaded with
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta:
			if !e.SourceRegister {
				regs[e.Register] = metaName(e.Key)
				continue
			}
			words = append(words, metaName(e.Key)+" set …")
		case *expr.Payload:
			if e.OperationType == expr.PayloadLoad {
				regs[e.DestRegister] = payloadName(e, family)
				continue
			}
			words = append(words, payloadName(e, family)+" set …")
		case *expr.Ct:
			regs[e.Register] = ctName(e.Key)
		case *expr.Fib:
			regs[e.Register] = "fib"
		case *expr.Bitwise:
			name := regs[e.SourceRegister]
			if ones := prefixLength(e.Mask); ones >= 0 && isAddress(name) {
				name += "/" + strconv.Itoa(ones)
			}
			regs[e.DestRegister] = name
		case *expr.Cmp:
			words = append(words, comparison(regs[e.Register], e))
		case *expr.Range:
			words = append(words, fmt.Sprintf("%s %s-%s", regs[e.Register], value(regs[e.Register], e.FromData), value(regs[e.Register], e.ToData)))
		case *expr.Lookup:
			words = append(words, fmt.Sprintf("%s in @%s", regs[e.SourceRegister], e.SetName))
		default:
			if w := statement(e); w != "" {
				words = append(words, w)
			}
		}
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

func metaName(k expr.MetaKey) string {
	names := map[expr.MetaKey]string{
		expr.MetaKeyIIFNAME: "iifname", expr.MetaKeyOIFNAME: "oifname", expr.MetaKeyIIF: "iif", expr.MetaKeyOIF: "oif",
		expr.MetaKeyMARK: "mark", expr.MetaKeyL4PROTO: "l4proto", expr.MetaKeyNFPROTO: "nfproto", expr.MetaKeyPROTOCOL: "protocol",
		expr.MetaKeySKUID: "skuid", expr.MetaKeySKGID: "skgid", expr.MetaKeyPKTTYPE: "pkttype", expr.MetaKeyLEN: "length", expr.MetaKeyCGROUP: "cgroup",
	}
	if n, ok := names[k]; ok {
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

// payloadName names the header fields that rules mostly look at.
func payloadName(e *expr.Payload, family nftables.TableFamily) string {
	switch e.Base {
	case expr.PayloadBaseTransportHeader:
		switch e.Offset {
		case 0:
			return "sport"
		case 2:
			return "dport"
		}
	case expr.PayloadBaseNetworkHeader:
		name, length := "", uint32(0)
		switch {
		case e.Offset == 12 && family != nftables.TableFamilyIPv6:
			name, length = "ip saddr", 4
		case e.Offset == 16 && family != nftables.TableFamilyIPv6 && e.Len <= 4:
			name, length = "ip daddr", 4
		case e.Offset == 8 && e.Len > 1:
			name, length = "ip6 saddr", 16
		case e.Offset == 24 && e.Len > 1:
			name, length = "ip6 daddr", 16
		case e.Offset == 9 && e.Len == 1:
			return "ip protocol"
		}
		if name != "" && e.Len < length {
			return fmt.Sprintf("%s/%d", name, 8*e.Len)
		}
		if name != "" {
			return name
		}
	case expr.PayloadBaseLLHeader:
		switch e.Offset {
		case 0:
			return "ether daddr"
		case 6:
			return "ether saddr"
		case 12:
			return "ether type"
		}
	}
	return fmt.Sprintf("[payload %d,%d,%d]", e.Base, e.Offset, e.Len)
}

func isAddress(name string) bool {
	return strings.Contains(name, "addr") && strings.HasPrefix(name, "ip")
}

// prefixLength is the length of a mask of leading ones, or -1.
func prefixLength(mask []byte) int {
	ones, done := 0, false
	for _, b := range mask {
		for bit := 7; bit >= 0; bit-- {
			switch set := b>>bit&1 == 1; {
			case set && done:
				return -1
			case set:
				ones++
			default:
				done = true
			}
		}
	}
	return ones
}

// comparison writes "name op value"; a length noted in the name goes behind the
// value.
func comparison(name string, e *expr.Cmp) string {
	bare, prefix, _ := strings.Cut(name, "/")
	v := value(bare, e.Data)
	if prefix != "" {
		v += "/" + prefix
	}
	op := map[expr.CmpOp]string{expr.CmpOpEq: " ", expr.CmpOpNeq: " != ", expr.CmpOpLt: " < ", expr.CmpOpLte: " <= ", expr.CmpOpGt: " > ", expr.CmpOpGte: " >= "}[e.Op]
	if bare == "ct state" && e.Op == expr.CmpOpNeq && strings.Trim(string(e.Data), "\x00") == "" {
		return "ct state …" // compared after a mask: "any of these states"
	}
	return bare + op + v
}

// value writes bytes in the form that belongs to the field.
func value(name string, b []byte) string {
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
	case name == "sport" || name == "dport":
		if len(b) == 2 {
			return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
		}
	case name == "l4proto" || name == "ip protocol":
		if len(b) == 1 {
			return protocol(b[0])
		}
	case (name == "protocol" || name == "ether type") && len(b) == 2:
		if n, ok := map[uint16]string{unix.ETH_P_IP: "ip", unix.ETH_P_IPV6: "ip6", unix.ETH_P_ARP: "arp"}[binary.BigEndian.Uint16(b)]; ok {
			return n
		}
	case name == "nfproto" && len(b) == 1:
		return map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[b[0]]
	case len(b) == 4:
		return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(b)), 10)
	}
	return fmt.Sprintf("0x%x", b)
}

func protocol(b byte) string {
	if n, ok := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "ipv6-icmp"}[b]; ok {
		return n
	}
	return strconv.Itoa(int(b))
}

// statement writes what is neither a load nor a comparison.
func statement(e expr.Any) string {
	switch e := e.(type) {
	case *expr.Verdict:
		switch e.Kind {
		case expr.VerdictAccept:
			return "accept"
		case expr.VerdictDrop:
			return "drop"
		case expr.VerdictReturn:
			return "return"
		case expr.VerdictJump:
			return "jump " + e.Chain
		case expr.VerdictGoto:
			return "goto " + e.Chain
		case expr.VerdictQueue:
			return "queue"
		}
	case *expr.Counter:
		return fmt.Sprintf("counter packets %d", e.Packets)
	case *expr.Reject:
		return "reject"
	case *expr.Masq:
		return "masquerade"
	case *expr.Redir:
		return "redirect"
	case *expr.NAT:
		if e.Type == expr.NATTypeDestNAT {
			return "dnat"
		}
		return "snat"
	case *expr.Log:
		return "log"
	case *expr.Limit:
		return "limit"
	case *expr.Notrack:
		return "notrack"
	case *expr.TProxy:
		return "tproxy"
	case *expr.FlowOffload:
		return "flow add"
	case *expr.Match:
		return xtMatch(e)
	case *expr.Target:
		return e.Name
	case *expr.Immediate, *expr.Byteorder:
		return ""
	}
	return "[" + strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr.")) + "]"
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
