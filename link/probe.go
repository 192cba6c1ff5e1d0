package link

import (
	"errors"
	"slices"
	"sync"

	"cleat/netns"
)

// probes has a cached probe for each kind, and for the features that Probe knows
// besides.
var probes = func() map[string]func() error {
	out := map[string]func() error{}
	add := func(name string, try func(*netns.NS) error) {
		out[name] = sync.OnceValue(func() error { return runProbe(name, try) })
	}
	for _, k := range kinds() {
		add(k.name, k.probe)
	}
	add("openvswitch", probeOVS)
	out["openvswitch-port"] = out["openvswitch"]
	add("mptcp", probeMPTCP)
	add("tbf", probeTBF)
	add("bridge-netfilter", probeBridgeNetfilter)
	return out
}()

// Probe reports whether links of a kind can be created here: it returns nil, or a
// *Lack with the reason and the remedy. Besides Kinds it accepts the features
// "tbf", "mptcp" and "bridge-netfilter". The first call for a kind creates a link
// in a scratch namespace; later calls return the same result. Probe is safe for
// concurrent use. An unknown kind is a *ParamError.
func Probe(kind string) error {
	p, ok := probes[kind]
	if !ok {
		return unknownKind(kind)
	}
	return p()
}

// runProbe calls try with a scratch namespace. Any error becomes a *Lack.
func runProbe(kind string, try func(*netns.NS) error) error {
	ns, err := netns.New("probe-" + kind)
	if err == nil {
		defer ns.Close()
		err = try(ns)
	}
	var lack *Lack
	switch {
	case err == nil:
		return nil
	case errors.As(err, &lack):
		return lack
	}
	return newLack(kind, err)
}

func (k kind) probe(ns *netns.NS) error {
	if slices.ContainsFunc(k.defaults(), func(f field) bool { _, ok := f.val.(parent); return ok }) {
		p, err := Create(ns, VethSpec{Attrs: Attrs{Name: probeParent}, Peer: Attrs{Name: "other"}}, Target{})
		if err != nil {
			return err
		}
		defer p.Close()
	}
	l, err := Create(ns, k.probeSpec, Target{})
	if err != nil {
		return err
	}
	return l.Close()
}

// probeOVS looks for the programs and for the kernel's datapath. It starts no
// daemons.
func probeOVS(ns *netns.NS) error {
	if err := checkOVSPrograms(); err != nil {
		return err
	}
	g, err := dialGenl(ns, "ovs_datapath")
	if err != nil {
		return err
	}
	return g.Close()
}

func probeTBF(ns *netns.NS) error {
	l, err := Create(ns, VethSpec{Attrs: Attrs{Name: "probe"}, Peer: Attrs{Name: "other"}}, Target{})
	if err != nil {
		return err
	}
	defer l.Close()
	return Shape(l, Shaping{RateBitsPerSec: 1e6})
}

func probeMPTCP(ns *netns.NS) error {
	_, err := ReadMPTCPLimits(ns)
	return err
}
