package why

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/network/named"
	"cleat/network/survey"
	"cleat/network/trace"
)

// checkKernel checks what the kernel does with packets to the targets: routes, neighbours,
// links, firewall rules, and sizes. It runs after the probe, which fills the neighbour tables.
func (v *investigation) checkKernel(ctx context.Context) {
	v.checkDrift(ctx)
	var facts []string
	for _, t := range v.targets {
		text := v.checkRoute(t)
		if text != "" {
			facts = append(facts, text)
		}
		if t.at == nil || t.at.ns != nil {
			v.checkNeighbour(ctx, t)
			v.checkWayBack(t)
		}
	}
	if len(facts) > 0 {
		v.ok(checkKernel, "%s", strings.Join(facts, "; "))
	}
	v.checkPaths(ctx)
	v.checkPorts()
	v.checkOtherChains()
}

// checkDrift checks, if a probe failed, that the kernel has what networks want of it.
func (v *investigation) checkDrift(ctx context.Context) {
	if v.firstFailed() == nil {
		return
	}
	found, err := named.Check(ctx, v.cfg)
	if err != nil {
		v.unknown(checkKernel, "what networks want can't be compared with the kernel: %v", err)
		return
	}
	var texts []string
	for _, d := range found {
		concerned := d.Network == "" || slices.ContainsFunc(append([]*machine{v.from}, v.to...), func(m *machine) bool { return m.on(d.Network) != nil })
		// checkEnds has looked at containers, and checkPaths at chains of other programs.
		if concerned && d.Container == "" && d.Remedy == "" {
			texts = append(texts, d.String())
		}
	}
	const most = 3
	if len(texts) > most {
		texts = append(texts[:most], fmt.Sprintf("and %d more differences", len(texts)-most))
	}
	if len(texts) == 0 {
		v.ok(checkKernel, "it has the devices, addresses and rules that networks want")
	} else {
		v.bad(checkKernel, finding{cause: Drift, because: "the kernel has not what networks want: " + strings.Join(texts, "; "), try: repairCommand, explains: failure})
	}
}

// observe reads all namespaces, with the names of those that the question is about.
func (v *investigation) observe(ctx context.Context) (*trace.Observation, error) {
	labels := map[uint64]survey.Name{}
	for _, m := range append([]*machine{v.host, v.from}, v.to...) {
		if m.ns == nil {
			continue
		}
		if id, err := m.ns.ID(); err == nil {
			labels[id] = survey.Name{Container: m.ns.String(), Runtime: m.container.Engine}
		}
	}
	return trace.Observe(ctx, labels)
}

// follow returns the path of packets from the source to each machine with a target, by machine.
func (v *investigation) follow(ctx context.Context) (map[*machine]trace.Path, error) {
	o, err := v.observe(ctx)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	paths := map[*machine]trace.Path{}
	for _, t := range v.targets {
		m := t.machine()
		if _, done := paths[m]; done || m == nil || m.ns == nil || m == v.from || t.route.err != nil {
			continue
		}
		p, err := o.Trace(v.from.ns, m.ns)
		if err != nil {
			v.unknown(checkKernel, "%v", err)
			continue
		}
		paths[m] = p
	}
	return paths, nil
}

// machine returns the machine whose program answers: behind a published port it is the
// container.
func (t *target) machine() *machine {
	if t.published != nil {
		return t.published.at
	}
	return t.at
}

// checkPaths checks the links and the firewall rules between the source and the machines.
func (v *investigation) checkPaths(ctx context.Context) {
	if len(v.targets) == 0 {
		return
	}
	paths, err := v.follow(ctx)
	if err != nil {
		v.unknown(checkKernel, "the path can't be followed: %v", err)
		return
	}
	rose := v.countAgain(ctx, paths)
	for _, t := range v.targets {
		p, ok := paths[t.machine()]
		if !ok || t.outcome == untried {
			continue
		}
		delete(paths, t.machine())
		all := v.targetsOf(t.machine())
		if i := slices.IndexFunc(all, func(t *target) bool { _, to := v.destination(t); return to.Addr() == p.Destination }); i >= 0 {
			v.checkHops(all[i], p)
			v.checkFilters(all[i], p, rose)
		} else {
			v.unknown(checkKernel, "the packets to %s are not followed, only those to %s", t.addr, p.Destination)
		}
		if i := slices.IndexFunc(all, func(t *target) bool { return t.outcome&(reached|unclear) != 0 }); i >= 0 {
			v.checkSize(all[i], p)
		}
	}
}

// targetsOf returns the targets that lead to a machine.
func (v *investigation) targetsOf(m *machine) []*target {
	return slices.DeleteFunc(slices.Clone(v.targets), func(t *target) bool { return t.machine() != m })
}

// checkHops checks that a path leads to its end over links that are up.
func (v *investigation) checkHops(t *target, p trace.Path) {
	down := slices.IndexFunc(p.Hops, func(h trace.Hop) bool { return !h.Up })
	switch {
	case down >= 0:
		h := p.Hops[down]
		try := repairCommand
		if m := v.machineCalled(h.Namespace); m != nil {
			try = m.inside("ip link set " + columns.Word(h.Link) + " up")
		}
		v.bad(checkKernel, finding{cause: LinkDown, of: t.machine(), explains: lost, try: try,
			because: fmt.Sprintf("%s in %s is down, a link on the way to %s", h.Link, v.placeText(h.Namespace), p.Destination)})
	case !p.Complete && len(p.Warnings) > 0:
		v.incomplete(t, p)
	default:
		text := columns.Plural(len(p.Hops), "link") + " on the way, all up"
		if i := slices.IndexFunc(p.Hops, func(h trace.Hop) bool { return checksumsOff(h.Offloads) }); i >= 0 {
			text += fmt.Sprintf("; %s in %s does not offload checksums", p.Hops[i].Link, v.placeText(p.Hops[i].Namespace))
		}
		v.ok(checkKernel, "%s", text)
	}
}

// incomplete says where a path ends. If packets arrive, the trace lacks something.
func (v *investigation) incomplete(t *target, p trace.Path) {
	why := p.Warnings[0]
	if t.outcome == reached {
		v.unknown(checkKernel, "the path can't be followed to its end: %s", why)
		return
	}
	f := finding{cause: Path, of: t.machine(), explains: lost, because: "the path of the packets ends early: " + why, try: repairCommand}
	if strings.Contains(why, "does not forward") {
		f.because = why
		f.try = "sysctl -w net.ipv4.ip_forward=1"
		if p.Destination.Is6() {
			f.try = "sysctl -w net.ipv6.conf.all.forwarding=1"
		}
	}
	v.bad(checkKernel, f)
}

// checksumsOff reports whether a device could compute checksums of packets that it sends, but
// must not.
func checksumsOff(offloads string) bool {
	_, off, _ := strings.Cut(offloads, "off:")
	return slices.Contains(strings.Fields(off), "tx")
}

// machineCalled returns the machine with a label of a trace; nil if it is another one.
func (v *investigation) machineCalled(label string) *machine {
	for _, m := range append([]*machine{v.host, v.from}, v.to...) {
		if m.ns != nil && (m.ns.String() == label || m.isHost && label == Host) {
			return m
		}
	}
	return nil
}

// placeText returns the name of a namespace in a sentence.
func (v *investigation) placeText(label string) string {
	if m := v.machineCalled(label); m != nil {
		return m.label
	}
	return label
}
