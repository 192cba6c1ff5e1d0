package why

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/network/attach"
	"cleat/network/named"
	"cleat/packet"
)

// Cluster is what is known of other hosts.
type Cluster struct {
	Host  string // this one
	Hosts []OtherHost
	// Ask asks another host about a container of its own; nil: it can't be asked.
	Ask func(ctx context.Context, host string, q EndQuestion) (*EndAnswer, error)
}

// OtherHost is another host.
type OtherHost struct {
	Name  string
	Alive bool
	Since time.Time // it is alive, or not; zero: unknown
	Old   bool      // that is as this host last heard of it
	By    string    // how its containers are reached; "unreachable": not at all
	Why   string
}

// Unreachable is OtherHost.By of a host whose containers this one can't reach.
const Unreachable = "unreachable"

// An ElsewhereError means that the source is on another host, which has to be asked.
type ElsewhereError struct {
	Container string // NETWORK/NAME
	Host      string
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("%s is on host %s, which has to be asked", e.Container, e.Host)
}

// same reports whether two endpoints are those of one container.
func (v *investigation) same(a, b *named.Endpoint) bool {
	return v.hostOf[a] == v.hostOf[b] && a.Container.FileName() == b.Container.FileName()
}

// label returns the name of an endpoint's container, with its host if that is another one.
func (v *investigation) label(e *named.Endpoint) string {
	name := e.Container.ShortName()
	host := v.hostOf[e]
	if host == "" {
		return name
	}
	if strings.Contains(name, "/") && len(e.Names) > 0 { // a path, of another host
		name = e.Names[0]
	}
	return name + "@" + host
}

// onHost splits a reference with a host: api@b. matching finds endpoints of that host, or of all.
func (v *investigation) onHost(ref string) (name string, matching func(func(*named.Endpoint) bool) []*named.Endpoint, err error) {
	i := strings.LastIndexByte(ref, '@')
	if i < 0 || v.q.Cluster == nil {
		return ref, v.matching, nil
	}
	name, host := ref[:i], ref[i+1:]
	known := []string{v.q.Cluster.Host}
	for _, h := range v.q.Cluster.Hosts {
		known = append(known, h.Name)
	}
	if !slices.Contains(known, host) {
		return "", nil, &attach.SpecError{Param: "HOST", Value: host, Reason: "the cluster has no such host", Allowed: known}
	}
	if host == v.q.Cluster.Host {
		host = ""
	}
	return name, func(f func(*named.Endpoint) bool) []*named.Endpoint {
		return v.matching(func(e *named.Endpoint) bool { return v.hostOf[e] == host && f(e) })
	}, nil
}

// other returns another host; nil if nothing is known of it.
func (v *investigation) other(name string) *OtherHost {
	if v.q.Cluster == nil {
		return nil
	}
	i := slices.IndexFunc(v.q.Cluster.Hosts, func(h OtherHost) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return &v.q.Cluster.Hosts[i]
}

const statusCommand = "cleat-node status"

// checkOtherHost checks the way to a container of another host.
func (v *investigation) checkOtherHost(m *machine) {
	h := v.other(m.host)
	name, _, _ := strings.Cut(m.label, "@")
	switch {
	case h == nil:
		v.unknown(checkHosts, "%s is on host %s, about which this host's cleat-node says nothing", name, m.host)
	case !h.Alive:
		since := ""
		if !h.Since.IsZero() {
			since = ", since " + h.Since.Local().Format(time.DateTime)
		}
		v.bad(checkHosts, finding{cause: HostDown, of: m, explains: lost, try: statusCommand,
			because: fmt.Sprintf("host %s, on which %s is, is not alive", h.Name, name), fact: fmt.Sprintf("%s is on host %s, which is not alive%s", name, h.Name, since)})
	case h.By == Unreachable:
		v.bad(checkHosts, finding{cause: NoWay, of: m, explains: lost, try: statusCommand, because: fmt.Sprintf("no way leads to containers of host %s: %s", h.Name, h.Why)})
	case h.Old:
		v.unknown(checkHosts, "%s is on host %s, which was alive when the registry of hosts last answered; packets go there by %s: %s", name, h.Name, h.By, h.Why)
	default:
		v.ok(checkHosts, "%s is on host %s, which is alive; packets go there by %s: %s", name, h.Name, h.By, h.Why)
	}
}

// EndQuestion asks a host about a container of its own, to which packets of another host are sent.
type EndQuestion struct {
	Network   string          `json:"network"`
	Container string          `json:"container"` // e.g. "docker:api"
	Address   netip.Addr      `json:"address"`
	Port      uint16          `json:"port,omitempty"`
	Protocol  packet.Protocol `json:"protocol,omitempty"`
	From      netip.Addr      `json:"from,omitzero"`     // the address that the container sees
	Outcome   uint8           `json:"outcome,omitempty"` // of the other host's probe
}

// EndAnswer is what a host has found at a container of its own.
type EndAnswer struct {
	Checks   []Check      `json:"checks"`
	Findings []EndFinding `json:"findings"`
}

// EndFinding is something that is in the way there.
type EndFinding struct {
	Check    string `json:"check"`
	Cause    Cause  `json:"cause"`
	Because  string `json:"because"`
	Try      string `json:"try,omitempty"`
	Explains uint8  `json:"explains"`
	Weak     bool   `json:"weak,omitempty"`
}

// checkOtherEnds has other hosts look at the destinations that are theirs.
func (v *investigation) checkOtherEnds(ctx context.Context) {
	asked := map[*machine]bool{}
	for _, t := range v.targets {
		if t.at == nil || t.at.host == "" || asked[t.at] {
			continue
		}
		asked[t.at] = true
		if h := v.other(t.at.host); h == nil || !h.Alive || v.q.Cluster.Ask == nil {
			continue // it has been said
		}
		got, err := v.q.Cluster.Ask(ctx, t.at.host, EndQuestion{Network: t.endpoint.Network, Container: t.at.container.QualifiedName(), Address: t.addr,
			Port: v.q.To.Port, Protocol: v.q.To.Protocol, From: t.route.source, Outcome: uint8(t.outcome)})
		if err != nil {
			v.unknown(checkHosts, "host %s does not say how %s is: %v", t.at.host, t.at.label, err)
			continue
		}
		for _, c := range got.Checks {
			v.add(c.Name, c.State, "%s", "on host "+t.at.host+": "+c.Text)
		}
		for _, f := range got.Findings {
			v.findings = append(v.findings, finding{check: f.Check, cause: f.Cause, because: f.Because + " (on host " + t.at.host + ")", try: onHost(f.Try, t.at.host), explains: outcome(f.Explains), of: t.at, weak: f.Weak})
		}
	}
}

// onHost says where to type a command.
func onHost(try, host string) string {
	if try == "" {
		return ""
	}
	return "on host " + host + ": " + try
}

// AskEnd answers another host's question about a container of this host. It runs in the host's network namespace.
func AskEnd(ctx context.Context, cfg named.Config, q EndQuestion) (*EndAnswer, error) {
	to := Destination{Name: q.Address.String(), Port: q.Port, Protocol: q.Protocol}
	v := &investigation{cfg: cfg, store: named.Store{Store: cfg.Attach.Store}, q: Question{To: to}, hostOf: map[*named.Endpoint]string{}, from: &machine{label: "the source"}}
	defer v.close()
	if err := v.read(); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(v.endpoints, func(e *named.Endpoint) bool {
		return v.hostOf[e] == "" && e.Network == q.Network && e.Container.QualifiedName() == q.Container
	})
	if i < 0 {
		return nil, &named.NotConnectedError{Network: q.Network, Container: q.Container}
	}
	e := v.endpoints[i]
	m := v.machineOf(ctx, e)
	v.to = []*machine{m}
	t := newTarget(q.Address, m, e)
	t.outcome, t.route.source = outcome(q.Outcome), q.From
	v.targets = []*target{t}
	v.from.endpoints = []*named.Endpoint{e} // links to other networks of the container don't matter
	if m.ns == nil {
		v.bad(checkEnds, finding{cause: NotRunning, because: m.label + " does not run", fact: m.downText(), try: m.start(), explains: failure})
	} else {
		v.checkLinks(m)
		v.checkListeners(ctx)
		v.checkWayBack(t)
	}
	if t.outcome&lost != 0 {
		v.checkDrift(ctx)
		for _, text := range foreignDrops(ctx, cfg) {
			v.bad(checkKernel, finding{cause: Firewall, because: text, explains: lost, weak: true, try: "cleat net check"})
		}
	}
	a := &EndAnswer{Checks: v.checks}
	for _, f := range v.findings {
		a.Findings = append(a.Findings, EndFinding{Check: f.check, Cause: f.cause, Because: f.because, Try: f.try, Explains: uint8(f.explains), Weak: f.weak})
	}
	return a, ctx.Err()
}

// foreignDrops returns what rules of other programs drop on this host.
func foreignDrops(ctx context.Context, cfg named.Config) (all []string) {
	found, err := named.Check(ctx, cfg)
	if err != nil {
		return nil
	}
	for _, d := range found {
		if d.Network == "" && d.Container == "" && d.Remedy != "" {
			all = append(all, d.String())
		}
	}
	return all
}

// A Request is what hosts ask each other: one of the fields is set.
type Request struct {
	Question *Question    `json:"question,omitempty"` // whose source is on the asked host
	End      *EndQuestion `json:"end,omitempty"`
}

// Answer answers a request of another host, as JSON.
func (r Request) Answer(ctx context.Context, cfg named.Config, c *Cluster) (json.RawMessage, error) {
	switch {
	case r.Question != nil:
		q := *r.Question
		q.Cluster = c
		a, err := Ask(ctx, cfg, q)
		if err != nil {
			return nil, err
		}
		return json.Marshal(a)
	case r.End != nil:
		a, err := AskEnd(ctx, cfg, *r.End)
		if err != nil {
			return nil, err
		}
		return json.Marshal(a)
	}
	return nil, fmt.Errorf("this host's version does not know the question")
}
