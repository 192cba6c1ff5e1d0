package link

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cleat/internal/spell"
	"cleat/netns"
)

// probes has one cached probe a kind; features are no links, but can be lacking
// all the same.
var probes = func() map[string]func() error {
	out := map[string]func() error{
		"mptcp":            sync.OnceValue(func() error { return runProbe("mptcp", probeMPTCP) }),
		"tbf":              sync.OnceValue(func() error { return runProbe("tbf", probeTBF) }),
		"bridge-netfilter": sync.OnceValue(func() error { return runProbe("bridge-netfilter", probeBridgeNetfilter) }),
	}
	for _, k := range kinds() {
		out[k.name] = sync.OnceValue(func() error { return runProbe(k.name, k.probe) })
	}
	ovs := sync.OnceValue(func() error { return runProbe("openvswitch", probeOVS) })
	out["openvswitch"], out["openvswitch-port"] = ovs, ovs
	return out
}()

// Probe says whether links of that kind can be made here and now: nil, or a
// *Lack with the reason and the remedy. Besides Kinds it knows the features
// "tbf", "mptcp" and "bridge-netfilter". It makes one in a scratch namespace the
// first time and remembers the answer; it is safe for concurrent use. An unknown
// kind is a *ParamError.
func Probe(kind string) error {
	p, ok := probes[kind]
	if !ok {
		return &ParamError{Kind: "link", Param: "kind", Value: kind, Allowed: strings.Join(spell.Order(kind, Kinds()), ", ")}
	}
	return p()
}

// inScratch runs try in a namespace of its own. Whatever goes wrong there is a
// Lack.
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
	if k.needsParent() {
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

func (k kind) needsParent() bool {
	for _, f := range k.params(k.probeSpec) {
		if f.name == "parent" {
			return f.val.text() == probeParent
		}
	}
	return false
}

// probeOVS starts no daemons: it asks for the programs and for the kernel's half.
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

func probeBridgeNetfilter(ns *netns.NS) error {
	now, err := ReadBridgeNetfilter(ns)
	if err != nil {
		return err
	}
	if err := SetBridgeNetfilter(ns, now); err != nil {
		return fmt.Errorf("write what was read: %w", err)
	}
	return nil
}

func probeMPTCP(ns *netns.NS) error {
	_, err := ReadMPTCPLimits(ns)
	return err
}
