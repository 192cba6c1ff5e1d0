package why

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/columns"
	"cleat/network/trace"
	"cleat/packet"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// ownTables is how the names of Cleat's tables for networks begin. Of their rules, which look
// addresses up in sets, a trace knows too little. Checks rules and kernel are about them.
const ownTables = "cleat-net"

// suspect is a rule or a chain of another program that may drop packets.
type suspect struct {
	namespace string
	table     string // with its family
	chain     string
	rule      *trace.RuleHit // nil: the chain's policy
	certain   bool           // it drops all of these packets that get there
}

// id identifies a suspect's rule on this machine.
func (s suspect) id() string {
	if s.rule == nil {
		return strings.Join([]string{s.namespace, s.table, s.chain}, " ")
	}
	return strings.Join([]string{s.namespace, s.table, s.rule.Chain, strconv.FormatUint(s.rule.Handle, 10)}, " ")
}

// suspects returns what may drop packets on a path, and reports for each whether it is certain.
func (v *investigation) suspects(p trace.Path) []suspect {
	var all []suspect
	for _, h := range p.Hops {
		for _, f := range h.Filters {
			_, table, _ := strings.Cut(f.Table, " ")
			if strings.HasPrefix(table, ownTables) {
				continue
			}
			all = append(all, v.suspectsIn(h.Namespace, f)...)
		}
	}
	return all
}

// suspectsIn returns what may drop packets in a chain. What follows a rule that may accept them
// is not certain.
func (v *investigation) suspectsIn(namespace string, f trace.Filter) []suspect {
	var all []suspect
	certain := true
	for i := range f.Match {
		r := &f.Match[i]
		if !v.concernsPort(r.Text) {
			continue
		}
		switch {
		case r.Drops:
			all = append(all, suspect{namespace, f.Table, f.Chain, r, certain && v.matches(r)})
			if v.matches(r) {
				return all
			}
		case r.Accepts && v.matches(r):
			return all
		case r.Accepts:
			certain = false
		}
	}
	if f.Policy == "drop" {
		all = append(all, suspect{namespace, f.Table, f.Chain, nil, certain})
	}
	return all
}

// dport matches a destination port, or a range of them, in the text of a rule.
var dport = regexp.MustCompile(`\bdport (!= )?(\d+)(?:-(\d+))?\b`)

// protocolWord matches a transport protocol in the text of a rule.
var protocolWord = regexp.MustCompile(`\b(?:l4proto|ip protocol) (\w+)`)

// concernsPort reports whether a rule of this text can match the question's protocol and port,
// of which a trace knows nothing.
func (v *investigation) concernsPort(text string) bool {
	d := v.q.To
	protocol := map[packet.Protocol]string{packet.TCP: "tcp", packet.UDP: "udp"}[d.Protocol]
	if m := protocolWord.FindStringSubmatch(text); m != nil && protocol != "" && m[1] != protocol {
		return false
	}
	m := dport.FindStringSubmatch(text)
	if m == nil || d.Port == 0 {
		return true
	}
	first, _ := strconv.Atoi(m[2])
	last := first
	if m[3] != "" {
		last, _ = strconv.Atoi(m[3])
	}
	in := first <= int(d.Port) && int(d.Port) <= last
	return in == (m[1] == "")
}

// understood matches those parts of a rule's text whose truth is known: the trace knows about
// addresses and devices, and concernsPort about protocols and destination ports.
var understood = regexp.MustCompile(`\b(nfproto \w+|(l4proto|ip protocol) \w+|dport (!= )?\d+(-\d+)?|ip6? [sd]addr \S+|[io]ifname "[^"]*"|counter packets \d+|log|accept|drop|reject)`)

// matches reports whether a rule certainly matches the question's packets.
func (v *investigation) matches(r *trace.RuleHit) bool {
	return r.Certain || v.q.To.Port != 0 && strings.TrimSpace(understood.ReplaceAllString(r.Text, "")) == ""
}

// counter matches a rule's counter.
var counter = regexp.MustCompile(`\bcounter packets (\d+)`)

// countAgain probes once more if a probe was not answered and rules with counters may be the
// reason. It returns the rules whose counters rose with the probe.
func (v *investigation) countAgain(ctx context.Context, before map[*machine]trace.Path) map[string]bool {
	counts := v.counters(before)
	failed := v.firstFailed()
	if len(counts) == 0 || failed == nil || failed.outcome&(lost|refused) == 0 {
		return nil
	}
	v.tryAll(ctx, failure)
	paths, err := v.follow(ctx)
	if err != nil {
		return nil
	}
	rose := map[string]bool{}
	for id, n := range v.counters(paths) {
		rose[id] = n > counts[id]
	}
	return rose
}

// counters returns how often suspects have matched, where they count.
func (v *investigation) counters(paths map[*machine]trace.Path) map[string]int {
	all := map[string]int{}
	for _, p := range paths {
		for _, s := range v.suspects(p) {
			if s.rule == nil {
				continue
			}
			if m := counter.FindStringSubmatch(s.rule.Text); m != nil {
				all[s.id()], _ = strconv.Atoi(m[1])
			}
		}
	}
	return all
}

// checkFilters blames rules of other programs for a failed probe: one whose counter rose with
// the probe, one that certainly drops the packets, or else the first that may.
func (v *investigation) checkFilters(t *target, p trace.Path, rose map[string]bool) {
	all := v.suspects(p)
	if t.outcome&(lost|refused) == 0 {
		return
	}
	rank := func(s suspect) int {
		switch {
		case rose[s.id()]:
			return 0
		case s.certain:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b suspect) int { return rank(a) - rank(b) })
	if len(all) == 0 {
		return
	}
	s := all[0]
	f := v.blame(s, p.Source, p.Destination)
	f.of = t.machine()
	v.bad(checkKernel, f.perhaps(rank(s) == 2))
}

// perhaps returns a finding about a rule that may drop packets, if uncertain is set.
func (f finding) perhaps(uncertain bool) finding {
	if uncertain {
		f.because, f.weak = strings.Replace(f.because, " drops ", " may drop ", 1), true
	}
	return f
}

// blame returns the finding that a rule or a chain drops packets.
func (v *investigation) blame(s suspect, from, to netip.Addr) finding {
	f := finding{cause: Firewall, explains: lost}
	where := fmt.Sprintf("chain %s of table %s in %s", s.chain, s.table, v.placeText(s.namespace))
	switch {
	case s.rule == nil:
		f.because = where + " drops what none of its rules accepts"
	default:
		if s.rule.Chain != s.chain {
			where = fmt.Sprintf("chain %s of table %s in %s", s.rule.Chain, s.table, v.placeText(s.namespace))
		}
		f.because = fmt.Sprintf("a rule in %s drops the packets: %s (handle %d)", where, s.rule.Text, s.rule.Handle)
		if strings.Contains(strings.ToLower(s.rule.Text), "reject") {
			f.explains |= refused
		}
	}
	f.try = acceptCommand(s, from, to)
	if m := v.machineCalled(s.namespace); m != nil {
		f.try = m.inside(f.try)
	}
	return f
}

// acceptCommand returns a command that accepts packets before the rules of a chain drop them.
func acceptCommand(s suspect, from, to netip.Addr) string {
	family, table, _ := strings.Cut(s.table, " ")
	if table == "filter" && strings.ToUpper(s.chain) == s.chain { // a table of iptables
		program := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[family]
		return fmt.Sprintf("%s -I %s -s %s -d %s -j ACCEPT", program, columns.Word(s.chain), from, to)
	}
	word := map[bool]string{true: "ip", false: "ip6"}[to.Is4()]
	return fmt.Sprintf("nft insert rule %s %s %s %s saddr %s %[4]s daddr %[6]s accept", family, columns.Word(table), columns.Word(s.chain), word, from, to)
}

// checkOtherChains looks for chains of the host that drop what no rule accepts, where no path
// was followed: for packets that leave the host, or that obey its rules for incoming
// connections because they are for a published port.
func (v *investigation) checkOtherChains() {
	for _, t := range v.targets {
		hook, name := nftables.ChainHookForward, "forward"
		switch {
		case t.outcome&lost == 0:
			continue
		case t.at == nil:
		case t.published != nil && !t.published.port.BypassFirewall:
			hook, name = nftables.ChainHookInput, "input"
		default:
			continue
		}
		chains, err := v.droppingChains(*hook)
		if err != nil {
			v.unknown(checkKernel, "%v", err)
			return
		}
		for _, s := range chains {
			_, to := v.destination(t)
			f := v.blame(s, t.route.source, to.Addr()).perhaps(true)
			f.about = t
			if name == "input" {
				p := t.published
				f.try = fmt.Sprintf("cleat net unpublish %s %s && cleat net publish --bypass-firewall %[1]s %[2]s", columns.Word(p.at.ref()), p.port)
			}
			v.bad(checkKernel, f)
		}
	}
}

// droppingChains returns the chains of others at a hook of the host whose policy is drop.
func (v *investigation) droppingChains(hook nftables.ChainHook) ([]suspect, error) {
	var all []suspect
	return all, v.host.ns.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("list firewall chains: %w", err)
		}
		chains, err := c.ListChains()
		if err != nil {
			return fmt.Errorf("list firewall chains: %w", err)
		}
		families := map[nftables.TableFamily]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}
		for _, ch := range chains {
			drops := ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop && ch.Hooknum != nil && *ch.Hooknum == hook
			if family := families[ch.Table.Family]; drops && family != "" && !strings.HasPrefix(ch.Table.Name, ownTables) {
				all = append(all, suspect{namespace: v.host.ns.String(), table: family + " " + ch.Table.Name, chain: ch.Name})
			}
		}
		return nil
	})
}
