package host

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Filter is a chain of firewall rules that a packet passes on its way.
type Filter struct {
	Table  string    `json:"table"` // with its family, e.g. "inet filter"
	Chain  string    `json:"chain"`
	Hook   string    `json:"hook"`
	Policy string    `json:"policy,omitempty"` // "drop", where nothing accepts
	Rules  int       `json:"rules"`            // in this chain
	Match  []RuleHit `json:"match,omitempty"`  // those that could match the packet
	Cut    bool      `json:"cut,omitempty"`    // there are more ways through the chains than are followed
}

// RuleHit is a rule that could match.
type RuleHit struct {
	Chain   string `json:"chain"` // another than the Filter's when it was jumped to
	Handle  uint64 `json:"handle"`
	Text    string `json:"text"`
	Certain bool   `json:"certain"` // it matches every packet from A to B that gets to it; else it may match
	Drops   bool   `json:"drops"`   // its verdict is drop or reject
	Accepts bool   `json:"accepts"` // its verdict is accept
}

// ruleset is what nftables holds in one namespace.
type ruleset struct {
	chains []*nftables.Chain
	rules  map[chainKey][]*nftables.Rule
	left   *int // how many rules are still looked at, of all namespaces
}

type chainKey struct {
	family nftables.TableFamily
	table  string
	chain  string
}

func newRuleset() ruleset {
	left := mostRules
	return ruleset{rules: map[chainKey][]*nftables.Rule{}, left: &left}
}

// readRuleset lists the rules of the calling thread's namespace.
func readRuleset() (ruleset, error) {
	rs := newRuleset()
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return rs, fmt.Errorf("list firewall rules: %w", err)
	}
	defer c.CloseLasting()
	if rs.chains, err = c.ListChains(); err != nil {
		return rs, fmt.Errorf("list firewall chains: %w", err)
	}
	for _, ch := range rs.chains {
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return rs, fmt.Errorf("list firewall rules of chain %q: %w", ch.Name, err)
		}
		rs.rules[keyOf(ch)] = rules
	}
	slices.SortStableFunc(rs.chains, func(a, b *nftables.Chain) int {
		return cmp.Compare(priority(a), priority(b))
	})
	return rs, nil
}

func keyOf(c *nftables.Chain) chainKey { return chainKey{c.Table.Family, c.Table.Name, c.Name} }

func priority(c *nftables.Chain) nftables.ChainPriority {
	if c.Priority == nil {
		return 0
	}
	return *c.Priority
}

// hook is a place in the kernel where chains are hooked.
type hook struct {
	bridged bool // the frame is bridged: families bridge and netdev see it
	number  nftables.ChainHook
	name    string
}

// The hooks (include/uapi/linux/netfilter.h). Those of family bridge have the
// same numbers.
var (
	hookPrerouting  = hook{number: unix.NF_INET_PRE_ROUTING, name: "prerouting"}
	hookInput       = hook{number: unix.NF_INET_LOCAL_IN, name: "input"}
	hookForward     = hook{number: unix.NF_INET_FORWARD, name: "forward"}
	hookOutput      = hook{number: unix.NF_INET_LOCAL_OUT, name: "output"}
	hookPostrouting = hook{number: unix.NF_INET_POST_ROUTING, name: "postrouting"}
)

// inBridge is the same hook for frames that a bridge handles.
func (h hook) inBridge() hook { h.bridged = true; return h }

// packet is what is known of the packets from A to B. Protocol and ports are
// not: both directions of every connection count.
type packet struct {
	src, dst netip.Addr
	in, out  string // device names; "" where there is none
	inIndex  int
	outIndex int
	mac      net.HardwareAddr // destination, in a bridge
}

// filters lists the chains that pkt passes at the hooks, and the rules in them
// that could match it.
func (rs ruleset) filters(pkt packet, hooks ...hook) []Filter {
	var out []Filter
	for _, h := range hooks {
		for _, c := range rs.chains {
			if c.Hooknum == nil || *c.Hooknum != h.number || !h.sees(c.Table.Family, pkt) {
				continue
			}
			f := Filter{Table: familyName(c.Table.Family) + " " + c.Table.Name, Chain: c.Name, Hook: h.name, Rules: len(rs.rules[keyOf(c)])}
			if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				f.Policy = "drop"
			}
			w := walker{ruleset: rs, table: c.Table, pkt: pkt}
			f.Match, _ = w.walk(c.Name, nil)
			f.Cut = *rs.left == 0
			out = append(out, f)
		}
	}
	return out
}

func (h hook) sees(f nftables.TableFamily, pkt packet) bool {
	switch f {
	case nftables.TableFamilyBridge:
		return h.bridged
	case nftables.TableFamilyINet:
		return !h.bridged
	case nftables.TableFamilyIPv4:
		return !h.bridged && pkt.dst.Is4()
	case nftables.TableFamilyIPv6:
		return !h.bridged && pkt.dst.Is6()
	}
	return false
}

// mostRules is how many rules are looked at for a whole trace. Chains may jump to others many
// times each: the ways through them, whose number nothing bounds, are up to whoever is root in
// the namespace.
const mostRules = 200_000

// walker goes through the rules that a packet passes.
type walker struct {
	ruleset
	table *nftables.Table
	pkt   packet
}

// walk collects the rules of a chain, and of the chains it jumps to, that could
// match. It tells whether every packet ends in it.
func (w *walker) walk(chain string, seen []string) (hits []RuleHit, ends bool) {
	if slices.Contains(seen, chain) {
		return nil, false // the kernel refuses loops; be safe
	}
	seen = append(slices.Clone(seen), chain)
	for _, r := range w.rules[chainKey{w.table.Family, w.table.Name, chain}] {
		if *w.left == 0 {
			return hits, false
		}
		*w.left--
		m := match(r.Exprs, w.pkt, w.table.Family)
		if m == no {
			continue
		}
		v := verdict(r.Exprs)
		hits = append(hits, RuleHit{Chain: chain, Handle: r.Handle, Text: ruleText(r.Exprs, w.table.Family), Certain: m == yes,
			Drops: drops(r.Exprs), Accepts: v != nil && v.Kind == expr.VerdictAccept})
		if v == nil {
			continue
		}
		switch v.Kind {
		case expr.VerdictJump, expr.VerdictGoto:
			inner, end := w.walk(v.Chain, seen)
			hits = append(hits, inner...)
			if m == yes && (end || v.Kind == expr.VerdictGoto) {
				return hits, end
			}
		case expr.VerdictReturn:
			if m == yes {
				return hits, false
			}
		case expr.VerdictAccept, expr.VerdictDrop:
			if m == yes {
				return hits, true
			}
		}
	}
	return hits, false
}

// verdict is the rule's verdict, nil if it has none.
func verdict(exprs []expr.Any) *expr.Verdict {
	for _, e := range exprs {
		if v, ok := e.(*expr.Verdict); ok {
			return v
		}
	}
	return nil
}

func drops(exprs []expr.Any) bool {
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			if e.Kind == expr.VerdictDrop {
				return true
			}
		case *expr.Reject:
			return true
		case *expr.Target: // iptables-nft
			if e.Name == "REJECT" || e.Name == "DROP" {
				return true
			}
		}
	}
	return false
}

// truth has three values, because ports and states are not known.
type truth int

const (
	no truth = iota
	maybe
	yes
)

// register is what an expression loaded. known is false for what a packet from
// A to B may have or not.
type register struct {
	known bool
	value []byte
}

// match tells whether a rule matches: it runs the expressions as the kernel's
// little machine does (net/netfilter/nf_tables_core.c), as far as the packet is
// known.
func match(exprs []expr.Any, pkt packet, family nftables.TableFamily) truth {
	regs := map[uint32]register{}
	result := yes
	for _, e := range exprs {
		t := yes
		switch e := e.(type) {
		case *expr.Meta:
			if !e.SourceRegister {
				regs[e.Register] = pkt.meta(e.Key)
			}
		case *expr.Payload:
			if e.OperationType == expr.PayloadLoad {
				regs[e.DestRegister] = pkt.payload(e, family)
			}
		case *expr.Bitwise:
			regs[e.DestRegister] = masked(regs[e.SourceRegister], e)
		case *expr.Immediate:
			regs[e.Register] = register{known: true, value: e.Data}
		case *expr.Cmp:
			t = compare(regs[e.Register], e)
		case *expr.Range:
			t = inRange(regs[e.Register], e)
		case *expr.Ct:
			if !e.SourceRegister {
				regs[e.Register] = register{}
			}
		case *expr.Lookup, *expr.Match, *expr.Limit, *expr.Connlimit, *expr.Quota, *expr.Dynset:
			t = maybe
		case *expr.Fib:
			regs[e.Register] = register{}
		}
		if t == no {
			return no
		}
		result = min(result, t)
	}
	return result
}

// meta is the value of a meta key for this packet.
func (p packet) meta(key expr.MetaKey) register {
	switch key {
	case expr.MetaKeyNFPROTO:
		if p.dst.Is4() {
			return register{true, []byte{unix.NFPROTO_IPV4}}
		}
		return register{true, []byte{unix.NFPROTO_IPV6}}
	case expr.MetaKeyPROTOCOL:
		return register{true, p.etherType()}
	case expr.MetaKeyIIFNAME:
		return deviceName(p.in)
	case expr.MetaKeyOIFNAME:
		return deviceName(p.out)
	case expr.MetaKeyIIF:
		return deviceIndex(p.inIndex)
	case expr.MetaKeyOIF:
		return deviceIndex(p.outIndex)
	}
	return register{}
}

func (p packet) etherType() []byte {
	if p.dst.Is4() {
		return []byte{0x08, 0x00} // ETH_P_IP
	}
	return []byte{0x86, 0xdd} // ETH_P_IPV6
}

// deviceName is a name as the kernel compares it: padded with zeros to IFNAMSIZ.
func deviceName(name string) register {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return register{true, b}
}

// payload loads bytes of a header, known only if all of them are.
func (p packet) payload(e *expr.Payload, family nftables.TableFamily) register {
	var known map[uint32][]byte
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		known = p.networkHeader()
	case expr.PayloadBaseLLHeader:
		if family != nftables.TableFamilyBridge {
			return register{}
		}
		known = map[uint32][]byte{0: p.mac, 12: p.etherType()}
	}
	for offset, field := range known {
		if e.Offset >= offset && uint64(e.Offset)+uint64(e.Len) <= uint64(offset)+uint64(len(field)) {
			return register{true, field[e.Offset-offset : e.Offset-offset+e.Len]}
		}
	}
	return register{}
}

// networkHeader is the known part of the IP header: the addresses, by offset
// (RFC 791 section 3.1, RFC 8200 section 3).
func (p packet) networkHeader() map[uint32][]byte {
	if p.dst.Is4() {
		return map[uint32][]byte{12: p.src.AsSlice(), 16: p.dst.AsSlice()}
	}
	return map[uint32][]byte{8: p.src.AsSlice(), 24: p.dst.AsSlice()}
}

func masked(r register, e *expr.Bitwise) register {
	if !r.known || len(e.Mask) != len(r.value) || len(e.Xor) != len(r.value) {
		return register{}
	}
	out := make([]byte, len(r.value))
	for i := range out {
		out[i] = r.value[i]&e.Mask[i] ^ e.Xor[i]
	}
	return register{true, out}
}

// compare looks at as many bytes as the rule gives: fewer than a name's 16 are
// a prefix (eth*).
func compare(r register, e *expr.Cmp) truth {
	if !r.known || len(r.value) < len(e.Data) {
		return maybe
	}
	c := slices.Compare(r.value[:len(e.Data)], e.Data)
	return truthOf(map[expr.CmpOp]bool{
		expr.CmpOpEq: c == 0, expr.CmpOpNeq: c != 0,
		expr.CmpOpLt: c < 0, expr.CmpOpLte: c <= 0, expr.CmpOpGt: c > 0, expr.CmpOpGte: c >= 0,
	}[e.Op])
}

func inRange(r register, e *expr.Range) truth {
	if !r.known || len(r.value) != len(e.FromData) || len(r.value) != len(e.ToData) {
		return maybe
	}
	in := slices.Compare(r.value, e.FromData) >= 0 && slices.Compare(r.value, e.ToData) <= 0
	return truthOf(in == (e.Op == expr.CmpOpEq))
}

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// mayNotList tells whether rules could not be listed for want of privilege.
func mayNotList(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) }
