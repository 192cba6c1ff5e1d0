package run

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/cli/hint"
	"cleat/policy"
	"cleat/sandbox"
	"cleat/sandbox/control"
)

// carrier has the methods of a running sandbox.Network that target needs.
type carrier interface {
	Flows() ([]sandbox.FlowInfo, error)
	Stats() sandbox.Stats
	Names(netip.Addr) []string
	Forward(sandbox.Forward) (netip.AddrPort, error)
	Unforward(sandbox.Forward) error
	Forwards() []sandbox.Forward
}

// target is a running `cleat run` for "cleat ctl", a control.Target. It is safe for concurrent
// use.
type target struct {
	info  control.Info
	net   carrier
	rules *policy.Policy
	stop  func()

	mu       sync.Mutex
	explicit []sandbox.Forward // by --publish or "cleat ctl forward add"; others are automatic
}

// newTarget returns the target of r, whose network is prepared.
func newTarget(r *runner, args []string, namespace string) *target {
	cfg := r.net.Config()
	tier, why := r.net.Tier()
	t := &target{net: r.net, rules: r.rules, stop: func() { r.stop() }, explicit: r.net.Forwards()}
	t.info = control.Info{
		Name: r.flags.name, PID: os.Getpid(), UID: os.Getuid(), Command: args, Namespace: namespace,
		Started: time.Now(), MTU: cfg.MTU, Tier: string(tier), Why: why,
	}
	for _, p := range []netip.Prefix{cfg.Addr4, cfg.Addr6} {
		if p.IsValid() {
			t.info.Addresses = append(t.info.Addresses, p.Addr())
		}
	}
	if !cfg.DNS.Off {
		t.info.Resolvers = cfg.DNS.Listen
	}
	return t
}

func (t *target) explicitForwards() []control.Forward {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []control.Forward
	for _, f := range t.explicit {
		all = append(all, WireForward(f))
	}
	return all
}

// Info implements control.Target, as the following methods do.
func (t *target) Info() control.Info { return t.info }

func (t *target) Flows() ([]control.Flow, error) {
	flows, err := t.net.Flows()
	if err != nil {
		return nil, err
	}
	all := make([]control.Flow, 0, len(flows))
	for _, f := range flows {
		w := control.Flow{
			Protocol: f.Protocol.String(), Inbound: f.Inbound, Source: f.Source, Destination: f.Destination,
			Host: f.Host, State: f.State, Tier: string(f.Tier), Why: f.Why, Started: f.Started,
			OutBytes: f.OutBytes, InBytes: f.InBytes, QueuedOut: f.QueuedOut, QueuedIn: f.QueuedIn,
		}
		if names := t.net.Names(f.Destination.Addr()); !f.Inbound && len(names) > 0 {
			w.Name = shortName(names[0])
		}
		all = append(all, w)
	}
	slices.SortStableFunc(all, func(a, b control.Flow) int { return a.Started.Compare(b.Started) })
	return all, nil
}

// shortName cuts a name that is longer than DNS permits (253 bytes, RFC 1035 section 2.3.4).
// Escapes make names longer: with the longest ones that a guest can choose, the flows would not
// fit into an answer.
func shortName(name string) string {
	const limit = 253
	if len(name) <= limit {
		return name
	}
	return name[:limit] + "…"
}

func (t *target) Stats() control.Stats { return wireStats(t.net.Stats()) }

func (t *target) Forwards() ([]control.Forward, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []control.Forward
	for _, f := range t.net.Forwards() {
		w := WireForward(f)
		w.Auto = !slices.Contains(t.explicit, f)
		all = append(all, w)
	}
	return all, nil
}

func (t *target) AddForward(w control.Forward) (control.Forward, error) {
	f, err := sandboxForward(w)
	if err != nil {
		return w, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f.Listen, err = t.net.Forward(f)
	if err != nil {
		return w, forwardError(err)
	}
	t.explicit = append(t.explicit, f)
	return WireForward(f), nil
}

// RemoveForward closes a port.
func (t *target) RemoveForward(w control.Forward) error {
	f, err := sandboxForward(w)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, have := range t.net.Forwards() {
		if sameForward(have, f) {
			t.explicit = slices.DeleteFunc(t.explicit, func(g sandbox.Forward) bool { return g == have })
			return t.net.Unforward(have)
		}
	}
	return &control.Error{Kind: control.KindRequest, Message: fmt.Sprintf("no such forward: %s", w), Hint: "`cleat ctl forward ls` lists them"}
}

// sameForward reports whether two forwards are equal. A forward at all addresses may have the
// unspecified address or none.
func sameForward(have, want sandbox.Forward) bool {
	anyAddr := func(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() }
	a, b := have.Listen.Addr(), want.Listen.Addr()
	return have.Protocol == want.Protocol && have.Listen.Port() == want.Listen.Port() && have.To.Port() == want.To.Port() &&
		(a == b || anyAddr(a) && anyAddr(b)) && have.Interface == want.Interface
}

func (t *target) Policy() (string, error) {
	text, err := t.rules.Rules().MarshalText()
	return string(text), err
}

func (t *target) SetPolicy(text string) error {
	rules, err := policy.Parse("policy", strings.NewReader(text))
	if err != nil {
		return control.BadRequest("%v", err)
	}
	if err := t.rules.Set(rules); err != nil {
		return control.BadRequest("%v", err)
	}
	return nil
}

func (t *target) Stop() { t.stop() }

// forwardError returns the control error of a port that could not be opened, with a hint.
func forwardError(err error) error {
	e := &control.Error{Kind: control.KindFailed, Message: err.Error()}
	if all := hint.All(setupError(err)); len(all) > 0 {
		e.Hint = all[0]
	}
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) && os.Getuid() == 0 {
		e.Hint = "`cleat run` gave up its rights at the start: publish the port with `cleat run -p`"
	}
	return e
}

// WireForward converts a forward to the control protocol's form.
func WireForward(f sandbox.Forward) control.Forward {
	return control.Forward{Protocol: f.Protocol.String(), Listen: control.EndpointOf(f.Listen), Interface: f.Interface, To: control.EndpointOf(f.To)}
}

func sandboxForward(w control.Forward) (sandbox.Forward, error) {
	f := sandbox.Forward{Protocol: sandbox.TCP, Listen: w.Listen.AddrPort(), Interface: w.Interface, To: w.To.AddrPort()}
	switch w.Protocol {
	case "tcp":
	case "udp":
		f.Protocol = sandbox.UDP
	default:
		return f, control.BadRequest("protocol %q: want tcp or udp", w.Protocol)
	}
	return f, nil
}

func wireStats(s sandbox.Stats) control.Stats {
	return control.Stats{
		Stats: s.Stats, Ledger: s.Ledger,
		Substituted: s.Supervisor.Connected, Lent: s.Supervisor.Listening, Datagram: s.Supervisor.Datagram, Kept: s.Supervisor.Kept,
	}
}
