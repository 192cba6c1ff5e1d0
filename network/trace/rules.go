package trace

import (
	"cmp"
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

type ruleset struct {
	chains []*nftables.Chain // by priority
	rules  map[chainKey][]*nftables.Rule
}

type chainKey struct {
	family nftables.TableFamily
	table  string
	chain  string
}

// readRuleset lists the rules of the calling thread's namespace.
func readRuleset() (ruleset, error) {
	rs := ruleset{rules: map[chainKey][]*nftables.Rule{}}
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return rs, fmt.Errorf("list firewall rules: %w", err)
	}
	defer c.CloseLasting()
	if rs.chains, err = c.ListChains(); err != nil {
		return rs, fmt.Errorf("list firewall chains: %w", err)
	}
	for _, ch := range rs.chains {
		if rs.rules[keyOf(ch)], err = c.GetRules(ch.Table, ch); err != nil {
			return rs, fmt.Errorf("list firewall rules of chain %q: %w", ch.Name, err)
		}
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

// hook is a point in the kernel where chains are hooked.
type hook struct {
	bridged bool // the frame is bridged: chains of family bridge see it
	number  nftables.ChainHook
	name    string
}

// The hooks (include/uapi/linux/netfilter.h). Those of family bridge have the same numbers.
var (
	hookPrerouting  = hook{number: unix.NF_INET_PRE_ROUTING, name: "prerouting"}
	hookInput       = hook{number: unix.NF_INET_LOCAL_IN, name: "input"}
	hookForward     = hook{number: unix.NF_INET_FORWARD, name: "forward"}
	hookOutput      = hook{number: unix.NF_INET_LOCAL_OUT, name: "output"}
	hookPostrouting = hook{number: unix.NF_INET_POST_ROUTING, name: "postrouting"}
)

// inBridge returns the same hook for frames that a bridge handles.
func (h hook) inBridge() hook { h.bridged = true; return h }

// sees reports whether chains of family f see pkt at the hook.
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

// packet is what is known of the packets from A to B. Protocol and ports are not known: rules
// about those may match.
type packet struct {
	src, dst netip.Addr
	in, out  string // device names; "" where there is none
	inIndex  int
	outIndex int
	mac      net.HardwareAddr // destination, in a bridge
}

// maxRules is how many rules are examined in one trace. Chains may jump to others many times
// each. Whoever is root in a namespace decides how many ways lead through its chains, and
// nothing bounds their number.
const maxRules = 200_000

// familyNames are the families as nft(8) writes them.
var familyNames = map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip",
	nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyBridge: "bridge"}

// filters lists the chains that pkt passes at the hooks, and the rules in them that could match
// it. It examines at most budget rules, and subtracts from budget those that it examined.
func (rs ruleset) filters(pkt packet, budget *int, hooks ...hook) []Filter {
	var out []Filter
	for _, h := range hooks {
		for _, c := range rs.chains {
			if c.Hooknum == nil || *c.Hooknum != h.number || !h.sees(c.Table.Family, pkt) {
				continue
			}
			f := Filter{Table: familyNames[c.Table.Family] + " " + c.Table.Name, Chain: c.Name, Hook: h.name, Rules: len(rs.rules[keyOf(c)])}
			if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				f.Policy = "drop"
			}
			w := ruleWalk{rs: rs, table: c.Table, pkt: pkt, budget: budget}
			f.Match, _ = w.chain(c.Name, nil)
			f.Cut = *budget == 0
			out = append(out, f)
		}
	}
	return out
}

type ruleWalk struct {
	rs     ruleset
	table  *nftables.Table
	pkt    packet
	budget *int // how many more rules may be examined
}

// chain collects the rules of a chain, and of the chains that it jumps to, that could match. It
// reports whether every packet ends in it.
func (w *ruleWalk) chain(name string, callers []string) (hits []RuleHit, ends bool) {
	if slices.Contains(callers, name) {
		return nil, false // the kernel refuses loops
	}
	callers = append(slices.Clone(callers), name)
	for _, r := range w.rs.rules[chainKey{w.table.Family, w.table.Name, name}] {
		if *w.budget == 0 {
			return hits, false
		}
		*w.budget--
		m, text := examine(r.Exprs, w.pkt, w.table.Family)
		if m == no {
			continue
		}
		v := verdict(r.Exprs)
		hits = append(hits, RuleHit{Chain: name, Handle: r.Handle, Text: text, Certain: m == yes,
			Drops: drops(r.Exprs), Accepts: v.Kind == expr.VerdictAccept})
		switch v.Kind {
		case expr.VerdictJump, expr.VerdictGoto:
			inner, end := w.chain(v.Chain, callers)
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

// verdict returns the rule's verdict. A rule without one goes on with the next rule.
func verdict(exprs []expr.Any) expr.Verdict {
	for _, e := range exprs {
		if v, ok := e.(*expr.Verdict); ok {
			return *v
		}
	}
	return expr.Verdict{Kind: expr.VerdictContinue}
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
