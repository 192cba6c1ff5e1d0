package link_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/netns"
)

// suite is the conformance suite of one kind of link.
type suite struct {
	kind string
	// valid are specs that set as many parameters as possible to something other than
	// the default. Together they set every parameter. newTargets creates their parent,
	// "parent".
	valid []link.Spec
	// adapt changes a spec for the running kernel and for the namespace in which the
	// link is created.
	adapt func(t *testing.T, here *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target)
	// invalid are specs that must be refused, with the parameter that the error must
	// name.
	invalid []invalidSpec
	// scenarios show for each mode of the kind that it passes traffic or isolates.
	scenarios []scenario
}

type invalidSpec struct {
	param string
	spec  link.Spec
}

type scenario struct {
	name string
	run  func(t *testing.T)
}

// TestConformance runs the suite of every kind that the running kernel supports. Links
// of the kind are created, pass traffic or isolate, read back as asked, leave existing
// links alone, and are removed without a trace. Invalid specs are refused.
func TestConformance(t *testing.T) {
	for _, s := range suites() {
		t.Run(s.kind, func(t *testing.T) {
			requireKind(t, s.kind)
			t.Run("parameters", s.createsValid)
			t.Run("refuses", s.rejectsInvalid)
			for _, w := range s.scenarios {
				t.Run(w.name, w.run)
			}
		})
	}
}

func suites() []suite {
	return []suite{
		vethSuite(), bridgeSuite(), bridgeVLANSuite(), macvlanSuite(), ipvlanSuite(), vlanSuite(),
		vxlanSuite(), geneveSuite(), ovsSuite(), ovsPortSuite(), netkitSuite(), wireGuardSuite(),
		ipipSuite(), greSuite(), ifbSuite(), dummySuite(), tunSuite(),
	}
}

// TestEveryKindHasASuite fails if a kind has no suite, or one with an empty part.
func TestEveryKindHasASuite(t *testing.T) {
	have := map[string]bool{}
	for _, s := range suites() {
		have[s.kind] = true
		if len(s.valid) == 0 || len(s.invalid) == 0 || len(s.scenarios) == 0 {
			t.Errorf("the suite of kind %q has no valid specs, no invalid specs or no scenarios", s.kind)
		}
	}
	for _, k := range link.Kinds() {
		if !have[k] {
			t.Errorf("kind %q has no suite", k)
		}
	}
}

// TestValidSpecsSetEveryParameter fails if no valid spec of a suite sets a parameter.
func TestValidSpecsSetEveryParameter(t *testing.T) {
	for _, s := range suites() {
		set := map[string]bool{}
		for _, spec := range s.valid {
			for name := range link.Params(spec) {
				set[name] = true
			}
		}
		for _, name := range link.ParamNames(s.kind) {
			switch {
			case set[name]:
			case name == "mac" && slices.Contains([]string{"ipvlan", "wireguard", "ipip", "gre"}, s.kind): // the kind refuses it
			case name == "db": // the address of the switch, not a property of the link
			case s.kind == "bridge" && strings.HasPrefix(name, "vlan_"): // set by bridge-vlan
			default:
				t.Errorf("%s: no spec of the suite sets %s", s.kind, name)
			}
		}
	}
}

func (s suite) adaptSpec(t *testing.T, here *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
	if s.adapt == nil {
		return spec, to
	}
	return s.adapt(t, here, spec, to)
}

// newTargets returns two namespaces and a target. The first namespace has a parent. The
// link ends up in the second, under a name that is also in use in the first.
func newTargets(t *testing.T) (here, there *netns.NS, to link.Target) {
	t.Helper()
	here, there = newNS(t, "here"), newNS(t, "there")
	parent, _ := cable(t, here, "parent", here, "wire")
	must(t, parent.SetMTU(4000))
	must(t, find(t, here, "wire").SetMTU(4000))
	addr(t, parent, "198.51.100.1/24")
	cable(t, here, "probe", here, "wire2") // the name of the new link is in use here
	return here, there, link.Target{NS: there, PeerNS: here}
}

// createsValid creates each valid spec and checks what holds for every kind.
func (s suite) createsValid(t *testing.T) {
	here, there, to := newTargets(t)
	for _, spec := range s.valid {
		spec, to := s.adaptSpec(t, here, spec, to)
		before := takeSnapshot(t, here, there)
		l, err := link.Create(here, spec, to)
		if err != nil {
			t.Fatalf("create %+v: %v", spec, err)
		}
		got, err := l.Spec()
		must(t, err)
		checkReadBack(t, spec, got)
		crossCheck(t, l, spec)
		if _, err := link.Create(here, spec, to); !errors.Is(err, link.ErrExists) {
			t.Errorf("create a second link with the same name: %v, want ErrExists", err)
		}
		if again, err := link.Find(l.NS(), l.Name()); err != nil || again.Index() != l.Index() {
			t.Errorf("the first link is gone after a second one was refused: %v", err)
		}
		exercise(t, l)
		must(t, l.Close())
		must(t, l.Close()) // closing twice is harmless
		checkSnapshot(t, before, here, there)
	}
}

// checkReadBack compares the spec that was read back with the one that was asked for,
// except for parameters that were left to the kernel.
func checkReadBack(t *testing.T, spec, got link.Spec) {
	t.Helper()
	have := link.Params(got)
	for name, want := range link.Params(spec) {
		hidden := want == "(hidden)"
		if have[name] != want || hidden && got != spec {
			t.Errorf("%s: read back %s as %q, want %q", spec.Kind(), name, have[name], want)
		}
	}
}

// exercise adds an address, a queueing discipline and a route.
func exercise(t *testing.T, l *link.Link) {
	t.Helper()
	up(t, l)
	addr(t, l, "192.0.2.77/24")
	route(t, l, "203.0.113.0/24", "")
	must(t, link.Shape(l, link.Shaping{RateBitsPerSec: 1e9}))
}

// rejectsInvalid checks that each invalid spec is refused and leaves nothing behind.
func (s suite) rejectsInvalid(t *testing.T) {
	here, there, to := newTargets(t)
	for i, r := range s.invalid { // before the snapshot: adapting may create things
		s.invalid[i].spec, to = s.adaptSpec(t, here, r.spec, to)
	}
	before := takeSnapshot(t, here, there)
	for _, r := range s.invalid {
		l, err := link.Create(here, r.spec, to)
		var param *link.ParamError
		switch {
		case err == nil:
			t.Errorf("created %+v with an invalid %s", r.spec, r.param)
			l.Close()
		case !errors.As(err, &param):
			t.Errorf("create %+v: %v, want a *ParamError for %s", r.spec, err, r.param)
		case param.Param != r.param || param.Allowed == "":
			t.Errorf("create %+v: the error names %s, want %s: %v", r.spec, param.Param, r.param, err)
		}
	}
	checkSnapshot(t, before, here, there)
}
