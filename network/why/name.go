package why

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/internal/spell"
	"cleat/network/named"
	"cleat/network/names"

	"github.com/google/nftables"
	"golang.org/x/net/dns/dnsmessage"
)

// checkName checks whether the destination's name leads to it, by the source's own files and by
// a real query from inside the source. Without other targets, the addresses that the name has
// become targets.
func (v *investigation) checkName(ctx context.Context) {
	if v.name == "" {
		return
	}
	if v.hostsFile(ctx) {
		return
	}
	text, path, err := v.from.readFile("resolv.conf")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.unknown(checkName, "the resolv.conf of %s can't be read: %v", v.from.label, err)
		return
	}
	r := parseResolver(text)
	within := answerWithin
	if len(v.targets) == 0 {
		within = foreignAnswerWithin
	}
	got := r.lookup(v.from.ns, v.name, within)
	if right, wrong := v.compare(got.addrs); len(right) > 0 && len(wrong) == 0 {
		v.ok(checkName, "%s is %s, says the name server %s", v.name, addrsText(right), got.server)
		v.aimAtUnaimed(ctx, got.addrs)
		return
	}
	f := v.nameFault(ctx, r, got, path)
	f.always = len(v.targets) > 0
	v.bad(checkName, f)
}

// hostsFile reports whether the source's hosts file has the name, which then counts alone.
func (v *investigation) hostsFile(ctx context.Context) bool {
	text, path, err := v.from.readFile("hosts")
	if err != nil {
		return false
	}
	addrs := hostsEntries(text, v.name)
	right, wrong := v.compare(addrs)
	switch {
	case len(addrs) == 0:
		return false
	case len(wrong) > 0:
		v.bad(checkName, finding{cause: HostsFile, always: true, try: fmt.Sprintf("remove the line with %s from %s", v.name, path),
			because: fmt.Sprintf("the hosts file of %s has the address %s for %s", v.from.label, addrsText(wrong), v.name)})
	default:
		v.ok(checkName, "%s is %s, says the hosts file of %s", v.name, addrsText(right), v.from.label)
		v.aimAtUnaimed(ctx, addrs)
	}
	return true
}

// aimAtUnaimed makes addresses targets if there is no other.
func (v *investigation) aimAtUnaimed(ctx context.Context, addrs []netip.Addr) {
	if len(v.targets) > 0 {
		return
	}
	for _, a := range addrs {
		v.aim(ctx, a)
	}
}

// compare splits the addresses that a name has into those that are right and wrong. If it is
// not known what is right, all are.
func (v *investigation) compare(addrs []netip.Addr) (right, wrong []netip.Addr) {
	for _, a := range addrs {
		if len(v.targets) == 0 || slices.ContainsFunc(v.targets, func(t *target) bool { return t.addr == a }) {
			right = append(right, a)
		} else {
			wrong = append(wrong, a)
		}
	}
	return right, wrong
}

func addrsText(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// ours returns the addresses at which the name server serves the source's networks.
func (v *investigation) ours() []netip.Addr {
	if v.from.isHost {
		return nil
	}
	all := v.store.NameServersOf(v.from.container)
	if len(all) > 0 {
		return all
	}
	for _, e := range v.from.endpoints {
		if n := v.network(e.Network); n != nil && n.OnHost() {
			for _, sub := range n.Subnets {
				all = append(all, sub.Gateway)
			}
		}
	}
	return all
}

// nameFault returns why a name has not the addresses that it should.
func (v *investigation) nameFault(ctx context.Context, r resolver, got reply, path string) finding {
	ours := v.ours()
	if len(ours) > 0 && !slices.Contains(ours, r.servers[0]) {
		return finding{cause: ResolvConf, try: fmt.Sprintf("echo nameserver %s > %s", ours[0], columns.Word(path)),
			because: fmt.Sprintf("%s asks the name server %s, not %s, which knows the names of %s", v.from.label, r.servers[0], ours[0], strings.Join(networksOf(v.from), " and "))}
	}
	if len(ours) > 0 {
		if f := v.serverFault(ctx); f != nil {
			return *f
		}
	}
	switch {
	case got.err != nil && slices.Contains(ours, got.server) && v.blockedQueries(got.server) != nil:
		return *v.blockedQueries(got.server)
	case len(v.targets) == 0 && slices.Contains(ours, got.server) && (got.err != nil || got.code == dnsmessage.RCodeServerFailure):
		return finding{cause: NameServer, because: "the host's own name servers do not answer for " + v.name, try: "getent ahosts " + columns.Word(v.name)}
	case got.err != nil:
		return finding{cause: NameServer, because: fmt.Sprintf("the name server %s does not answer %s: %s", got.server, v.from.label, errText(got.err)), try: repairCommand}
	case len(got.addrs) > 0:
		_, wrong := v.compare(got.addrs)
		return finding{cause: StaleName, because: fmt.Sprintf("the name server %s has the address %s for %s", got.server, addrsText(wrong), v.name), try: repairCommand}
	}
	return v.unknownName(got, path)
}

// blockedQueries returns a finding if the host's rules for incoming packets may drop queries to
// the name server of networks; nil if no chain drops anything by default.
func (v *investigation) blockedQueries(server netip.Addr) *finding {
	chains, err := v.droppingChains(*nftables.ChainHookInput)
	if err != nil || len(chains) == 0 {
		return nil
	}
	_, from := v.source(newTarget(server, v.host, nil))
	f := v.blame(chains[0], from, server)
	f.because = fmt.Sprintf("the name server %s does not answer %s: %s", server, v.from.label, strings.Replace(f.because, " drops ", " may drop ", 1))
	return &f
}

// serverFault returns a finding if the name server of networks does not run, or does not know
// what it should; nil if it does.
func (v *investigation) serverFault(ctx context.Context) *finding {
	c, err := names.Dial(ctx, named.NameServerPath(v.store))
	if errors.Is(err, names.ErrNotRunning) {
		return &finding{cause: NameServer, because: "the name server of networks does not run", try: "cleat keep"}
	}
	if err != nil {
		return &finding{cause: NameServer, because: "the name server of networks can't be asked: " + err.Error(), try: "cleat keep"}
	}
	defer c.Close()
	for _, e := range v.from.endpoints {
		n, err := c.Network(ctx, e.Network)
		if err != nil {
			return &finding{cause: StaleName, because: "the name server does not know the network " + e.Network, try: repairCommand}
		}
		for _, t := range v.targets {
			if t.endpoint == nil || t.endpoint.Network != n.Name {
				continue
			}
			if !slices.ContainsFunc(n.Endpoints, func(known names.Endpoint) bool { return slices.Contains(known.Addrs, t.addr) }) {
				return &finding{cause: StaleName, because: fmt.Sprintf("the name server does not know %s of %s", v.name, n.Name), try: repairCommand}
			}
		}
	}
	return nil
}

// otherServer returns the finding that the source asks the name server of one of its networks,
// which does not know the names of another.
func (v *investigation) otherServer(t *target, got reply, path string) finding {
	f := finding{cause: ResolvConf, because: fmt.Sprintf("%s asks the name server %s, which does not know the names of %s", v.from.label, got.server, t.endpoint.Network)}
	for _, sub := range v.network(t.endpoint.Network).Subnets {
		if sub.Gateway.Is4() == got.server.Is4() {
			f.try = fmt.Sprintf("echo nameserver %s > %s", sub.Gateway, columns.Word(path))
		}
	}
	return f
}

// unknownName returns the finding that nobody has the name where the source asks.
func (v *investigation) unknownName(got reply, path string) finding {
	f := finding{cause: UnknownName, because: fmt.Sprintf("the name server %s knows no %s", got.server, v.name)}
	if got.code != dnsmessage.RCodeSuccess && got.code != dnsmessage.RCodeNameError {
		f.because = fmt.Sprintf("the name server %s can't answer for %s (%s)", got.server, v.name, strings.TrimPrefix(got.code.String(), "RCode"))
	}
	for _, t := range v.targets {
		if t.endpoint == nil {
			continue
		}
		if v.from.on(t.endpoint.Network) == nil {
			f.because = fmt.Sprintf("%s has that name on %s, where %s is not", t.at.label, t.endpoint.Network, v.from.label)
			f.try = "cleat net connect " + t.endpoint.Network + " " + columns.Word(v.from.ref())
			return f
		}
		return v.otherServer(t, got, path)
	}
	var known []string
	for _, e := range v.endpoints {
		if v.from.on(e.Network) != nil {
			known = append(known, e.Names...)
		}
	}
	switch near := spell.Nearest(v.name, known); {
	case near != "":
		f.try = "cleat net why " + columns.Word(v.from.ref()) + " " + Destination{Name: near, Port: v.q.To.Port, Protocol: v.q.To.Protocol}.String()
	case len(v.from.endpoints) > 0:
		f.try = "cleat net ls " + v.from.endpoints[0].Network
	}
	return f
}
