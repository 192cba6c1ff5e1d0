package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/host"
	"cleat/bench/remote"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"

	"golang.org/x/sync/errgroup"
)

// Machine is another machine that takes part in an experiment.
type Machine struct {
	*remote.Node
	Device string // by which the others reach it; "": the first that works, and no links are stacked on it
}

// MachineFacts are what environment.json has of a machine.
type MachineFacts struct {
	Name       string          `json:"name"`
	Address    string          `json:"address"`
	Hostname   string          `json:"hostname,omitempty"`
	Processors []int           `json:"processors"`
	Host       json.RawMessage `json:"host"` // host.Host
}

// Machines are the machines of an experiment. It is used from one goroutine.
type Machines struct {
	all   []Machine
	names []string
	lacks map[string]map[string]error // by address and network: what keeps a machine from building it; nil: nothing
	paths map[[2]string]path
	built int // networks so far
}

// path is how the first machine reaches the second.
type path struct {
	server netip.AddrPort // where the second listens; the port is free again
	client remote.Route   // of the first
	device string         // of the second
	err    error          // why there is none
}

// NewMachines asks each machine which of the networks it can build. Close the machines
// afterwards.
func NewMachines(ctx context.Context, all []Machine, networks []string) (*Machines, error) {
	m := &Machines{all: all, lacks: map[string]map[string]error{}, paths: map[[2]string]path{}}
	for _, one := range all {
		m.names = append(m.names, nameOf(one, all))
	}
	networks = slices.DeleteFunc(slices.Clone(networks), func(n string) bool { return catalog.RoleOf(n) == catalog.Existing })
	for _, one := range all {
		mine := map[string]error{}
		m.lacks[one.String()] = mine
		if !one.Root {
			for _, n := range networks {
				mine[n] = &link.Lack{Reason: "networks need root"}
			}
			continue
		}
		lacks, err := one.Check(ctx, networks)
		if err != nil {
			return nil, err
		}
		for i, n := range networks {
			mine[n] = lacks[i]
		}
	}
	return m, nil
}

// nameOf returns the machine's host, with what distinguishes it from others.
func nameOf(one Machine, all []Machine) string {
	same := func(other Machine) bool { return other.Node != one.Node && other.Address.Host == one.Address.Host }
	if slices.ContainsFunc(all, same) {
		return strings.TrimPrefix(one.Address.String(), "ssh://")
	}
	return one.Address.Host
}

// lack returns what keeps one or both of two machines from building a network, as a
// *link.Lack; nil for nothing.
func (m *Machines) lack(network string, first, second Machine) error {
	var found *link.Lack
	for _, one := range []Machine{first, second} {
		err := m.lacks[one.String()][network]
		if err == nil {
			continue
		}
		name, reason, remedy := nameOf(one, m.all), err.Error(), ""
		var why *link.Lack
		if errors.As(err, &why) {
			reason, remedy = strings.TrimPrefix(why.What+": "+why.Reason, ": "), why.Remedy
		}
		switch {
		case found == nil:
			found = &link.Lack{What: name, Reason: reason, Remedy: remedy}
		case found.Reason == reason:
			found.What += betweenSeparator + name
		default:
			found.Reason += "; " + name + ": " + reason
			found.Remedy = cmp.Or(found.Remedy, remedy)
		}
	}
	if found == nil {
		return nil
	}
	return found
}

// betweenSeparator joins the names of a pair of machines.
const betweenSeparator = " and "

// Pairs returns the pairs of machines between which everything is measured: the first
// with each other one.
func (m *Machines) Pairs() []string {
	var out []string
	for _, name := range m.names[1:] {
		out = append(out, m.names[0]+betweenSeparator+name)
	}
	return out
}

// String returns the machines' names as a list.
func (m *Machines) String() string { return strings.Join(m.names, ", ") }

// machinePair are the machines of one cell: the client's and the server's.
type machinePair struct {
	client, server Machine
}

// pair returns the machines of Pairs()[i].
func (m *Machines) pair(between string) (first, second Machine) {
	i := slices.Index(m.Pairs(), between)
	return m.all[0], m.all[i+1]
}

// of returns the machines of a job; nil if m is nil.
func (m *Machines) of(job experiment.Job) *machinePair {
	if m == nil {
		return nil
	}
	first, second := m.pair(job.Cell.Factors[experiment.BetweenFactor])
	if job.Cell.Direction == "inbound" {
		first, second = second, first
	}
	return &machinePair{first, second}
}

// isStacked reports whether a job's network puts links on devices of other machines.
func isStacked(job experiment.Job) bool {
	return job.Cell.Factors[experiment.BetweenFactor] != "" && wiring.IsStacked(job.Cell.Network)
}

// RunBetween is Run between other machines. cfg.Experiment.Between must be m.Pairs(). It
// ends with a *remote.Lost as soon as the connection to one of them ends.
func RunBetween(ctx context.Context, cfg Config, m *Machines) error {
	may := func(congestion string) bool {
		return !slices.ContainsFunc(m.all, func(one Machine) bool { return !one.Root && !slices.Contains(one.Congestion, congestion) })
	}
	cfg.Experiment = permitted(cfg.Experiment, may)
	cfg.machines = m
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, one := range m.all {
		go func() {
			select {
			case <-one.Lost():
				cancel(one.Err())
			case <-ctx.Done():
			}
		}()
	}
	return start(ctx, cfg, func(*run) error { return nil })
}

// WithExistingPath returns the experiment with the path that joins machines already beside
// its networks, in both directions.
func WithExistingPath(e experiment.Experiment) experiment.Experiment {
	g := experiment.Group{Networks: []string{catalog.ExistingPath}, Directions: []string{"outbound", "inbound"}, Topologies: []string{"switched"}}
	for _, from := range e.Groups {
		for _, w := range from.Work {
			if isTraffic(w.Kind) && !slices.ContainsFunc(g.Work, func(o experiment.Work) bool { return o.Kind == w.Kind }) {
				g.Work = append(g.Work, w)
			}
		}
		g.Pairs, g.Streams, g.Engine, g.Congestion = from.Pairs, from.Streams, from.Engine, from.Congestion
		g.Factors = from.Factors
	}
	if len(g.Work) > 0 {
		e.Groups = append(slices.Clip(e.Groups), g)
	}
	return e
}

// isTraffic reports whether a kind of work sends traffic from a client to a server, which is
// all that is measured between machines.
func isTraffic(kind string) bool {
	return slices.Contains([]string{experiment.TCP, experiment.UDP, experiment.RR, experiment.UDPRR, experiment.CRR, experiment.Packets, experiment.Loaded}, kind)
}

// rulesOut returns why a job is not measured between machines, beside its network's
// reasons; nil if it may be, or if m is nil.
func (m *Machines) rulesOut(job experiment.Job) error {
	switch {
	case m == nil:
		return nil
	case !isTraffic(job.Work.Kind):
		return &wiring.NotApplicable{Why: "between machines only traffic is measured, not " + job.Work.Kind}
	case job.Cell.Placement == "same-core":
		return &wiring.NotApplicable{Why: "ends on two machines can't share a core"}
	}
	return nil
}

// Possible is the function Possible for these machines.
func (m *Machines) Possible(job experiment.Job) bool {
	return m.rulesOut(job) == nil && m.check(wiring.Config{Spec: specOf(job), Pairs: job.Cell.Pairs}) == nil
}

// Check returns why a network can't be built between the machines, as Check does for this
// one. Its name must be among those of NewMachines.
func (m *Machines) Check(network string) error {
	for _, between := range m.Pairs() {
		if err := m.check(wiring.Config{Spec: wiring.Spec{Network: network, Topology: "switched", Between: between}, Pairs: 1}); err != nil {
			return err
		}
	}
	return nil
}

// check returns why a network can't be built between two machines.
func (m *Machines) check(cfg wiring.Config) error {
	if cfg.Network == catalog.ExistingPath {
		return nil
	}
	first, second := m.pair(cfg.Between)
	if err := wiring.CheckSides(cfg, first.Device != "" && second.Device != ""); err != nil {
		return err
	}
	return m.lack(cfg.Network, first, second)
}

// build builds both sides of a network, or finds the path that exists.
func (m *Machines) build(ctx context.Context, cfg wiring.Config) (*wiring.Network, error) {
	if err := m.check(cfg); err != nil {
		return nil, err
	}
	first, second := m.pair(cfg.Between)
	if cfg.Network == catalog.ExistingPath {
		if cfg.Inbound {
			first, second = second, first
		}
		p := m.path(ctx, first, second)
		if p.err != nil {
			return nil, p.err
		}
		return wiring.Over(cfg.Pairs, first.On(remote.Where{}), second.On(remote.Where{}), p.server), nil
	}
	p := m.path(ctx, first, second)
	if p.err != nil {
		return nil, p.err
	}
	m.built++
	return buildSides(ctx, cfg, m.built, p, first, second)
}

// buildSides builds each machine's side of a network.
func buildSides(ctx context.Context, cfg wiring.Config, slot int, p path, first, second Machine) (*wiring.Network, error) {
	chosen := first.Device != "" && second.Device != ""
	sides := []wiring.Side{
		{Number: 1, Slot: slot, Device: p.client.Device, Chosen: chosen, Local: p.client.Local, Remote: p.server.Addr()},
		{Number: 2, Slot: slot, Device: p.device, Chosen: chosen, Local: p.server.Addr(), Remote: p.client.Local},
	}
	var err error
	if sides[0].Keys, sides[1].Keys, err = wiring.NewSideKeys(cfg.Network, cfg.Pairs); err != nil {
		return nil, err
	}
	machines := []Machine{first, second}
	built, errs := make([]uint64, len(sides)), make([]error, len(sides))
	var building sync.WaitGroup
	for i, one := range machines {
		building.Go(func() {
			id, err := one.Build(ctx, remote.Build{Spec: cfg.Spec, Pairs: cfg.Pairs, Side: sides[i]})
			if errs[i] = err; err == nil {
				built[i] = id
			}
		})
	}
	remove := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), removeLimit)
		defer cancel()
		var errs []error
		for i, one := range machines {
			if built[i] != 0 && one.Err() == nil { // a machine that is lost removes by itself
				errs = append(errs, one.Remove(ctx, built[i]))
			}
		}
		return errors.Join(errs...)
	}
	building.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, remove())
	}
	in := func(i int) func(int) lab.Runner {
		return func(pair int) lab.Runner { return machines[i].On(remote.Where{Network: built[i], Container: pair}) }
	}
	return wiring.Across(cfg.Pairs, in(0), in(1), remove), nil
}

// removeLimit bounds the removal of a network.
const removeLimit = 20 * time.Second

// path returns how the first machine reaches the second. It is found out once.
func (m *Machines) path(ctx context.Context, first, second Machine) path {
	key := [2]string{first.String(), second.String()}
	if p, ok := m.paths[key]; ok {
		return p
	}
	p := findPath(ctx, first, second)
	if ctx.Err() == nil {
		m.paths[key] = p
	}
	return p
}

// findPath tries the addresses of the second machine, one after the other.
func findPath(ctx context.Context, first, second Machine) path {
	var errs []error
	for _, to := range second.Addresses {
		if second.Device != "" && to.Device != second.Device {
			continue
		}
		at, err := second.Listen(ctx, to.Local)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		from, err := first.Reach(ctx, at)
		err = errors.Join(err, second.CloseListener(ctx))
		switch {
		case err != nil:
			errs = append(errs, err)
		case first.Device != "" && from.Device != first.Device:
			errs = append(errs, fmt.Errorf("%s reaches %s by %s, not by %s", first, to.Local, from.Device, first.Device))
		default:
			return path{server: at, client: from, device: to.Device}
		}
	}
	if len(errs) == 0 {
		return path{err: fmt.Errorf("%s has no address that others could reach on %s", second, cmp.Or(second.Device, "any device"))}
	}
	return path{err: fmt.Errorf("%s reaches no address of %s: %w", first, second, errors.Join(errs...))}
}

// describe puts the machines' facts into the environment. The first is its host.
func (m *Machines) describe(ctx context.Context, e *Environment) error {
	e.Lab, e.Hostname, e.Processors, e.Machines = "machines", m.String(), nil, nil
	texts := make([]json.RawMessage, len(m.all))
	var describing errgroup.Group
	for i, one := range m.all {
		describing.Go(func() (err error) {
			texts[i], err = one.Describe(ctx)
			return err
		})
	}
	if err := describing.Wait(); err != nil {
		return err
	}
	var findings []map[string]any
	for i, one := range m.all {
		var doctor struct {
			Host     json.RawMessage  `json:"host"`
			Findings []map[string]any `json:"findings"`
		}
		if err := json.Unmarshal(texts[i], &doctor); err != nil {
			return fmt.Errorf("describe %s: %w", one, err)
		}
		e.Machines = append(e.Machines, MachineFacts{m.names[i], one.Address.String(), one.Hostname, one.Processors, doctor.Host})
		for _, f := range doctor.Findings {
			f["title"] = fmt.Sprintf("%s: %v", m.names[i], f["title"])
			findings = append(findings, f)
		}
	}
	e.Host = e.Machines[0].Host
	var err error
	e.Findings, err = json.Marshal(findings)
	return err
}

// processors returns as many processors as an experiment has: this machine's, or those of
// the two machines that a job has at most.
func (c Config) processors() ([]int, error) {
	if c.machines == nil {
		return host.Processors()
	}
	most := 0
	for _, one := range c.machines.all[1:] {
		most = max(most, len(one.Processors))
	}
	return make([]int, len(c.machines.all[0].Processors)+most), nil
}

// cpusOf returns the processors for the ends of a job's pair. On two machines each end has
// its own machine's.
func (r *run) cpusOf(job experiment.Job, pair int) (client, server []int) {
	between := r.machines.of(job)
	if between == nil {
		return cpusOf(job.Cell.Placement, pair, r.cpus)
	}
	if job.Cell.Placement == "free" {
		return nil, nil
	}
	at := func(cpus []int) []int { return []int{cpus[pair%len(cpus)]} }
	return at(between.client.Processors), at(between.server.Processors)
}

// meter returns the processor time of both machines together, each over its own window:
// from lead after it hears of it. The windows are as long as the other one's to the
// precision of its timers, so the length is their mean.
func (p *machinePair) meter(ctx context.Context, lead, duration time.Duration) metered {
	// The client whose context this is may end before the answers come.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lead+duration+graceTime)
	defer cancel()
	window := remote.Meter{Wait: lead, For: duration}
	var parts [2]cell.CPU
	var both errgroup.Group
	for i, one := range []Machine{p.client, p.server} {
		both.Go(func() (err error) {
			parts[i], err = one.Meter(ctx, window)
			return err
		})
	}
	if err := both.Wait(); err != nil {
		return metered{err: fmt.Errorf("read the processor time: %w", err)}
	}
	a, b := parts[0], parts[1]
	return metered{CPU: cell.CPU{
		User: a.User + b.User, System: a.System + b.System, SoftIRQ: a.SoftIRQ + b.SoftIRQ, Idle: a.Idle + b.Idle, Steal: a.Steal + b.Steal,
		Foreign: a.Foreign + b.Foreign, ForeignUser: a.ForeignUser + b.ForeignUser, Wall: (a.Wall + b.Wall) / 2,
	}}
}

// startLine returns the line that makes a client begin. A client on another machine has
// another clock: it gets the time that is left.
func startLine(on lab.Runner, at time.Time) string {
	if remote.IsRemote(on) {
		return "+" + strconv.FormatInt(max(0, time.Until(at).Nanoseconds()), 10)
	}
	return strconv.FormatInt(at.UnixNano(), 10)
}
