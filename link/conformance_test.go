package link_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// suite is what one kind of link must do.
type suite struct {
	kind string
	// full are specs whose parameters are all set to something else than the
	// default, as far as they go together; together the specs set every
	// parameter. Parents are called "parent" and are there.
	valid []link.Spec
	// adapt changes a spec for the running kernel and for where it is to be made.
	adapt func(t *testing.T, here *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target)
	// bad are specs that must be refused, with the parameter to be named.
	invalid []invalidSpec
	// ways are the modes of the kind, each shown to pass traffic or to isolate.
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

// TestConformance is the seam's one suite: each kind of link, on whatever the
// running kernel has, is made, carries traffic or is shown to isolate, reads
// back what was asked, refuses what can't be, respects what exists, and is
// removed without a trace.
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
		ipipSuite(), greSuite(), gretapSuite(), ifbSuite(), dummySuite(), tunSuite(),
	}
}

// TestEveryKindHasASuite keeps the table of kinds and the suites together.
func TestEveryKindHasASuite(t *testing.T) {
	have := map[string]bool{}
	for _, s := range suites() {
		have[s.kind] = true
		if len(s.valid) == 0 || len(s.invalid) == 0 || len(s.scenarios) == 0 {
			t.Errorf("the suite of kind %q has a part missing", s.kind)
		}
	}
	for _, k := range link.Kinds() {
		if !have[k] {
			t.Errorf("kind %q has no suite", k)
		}
	}
}

// TestFullSpecsSetEveryParameter keeps "every parameter" honest.
func TestFullSpecsSetEveryParameter(t *testing.T) {
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
			case name == "mac" && slices.Contains([]string{"ipvlan", "wireguard", "ipip", "gre"}, s.kind): // refused
			case name == "db": // where the switch is, not what the link is
			case s.kind == "bridge" && strings.HasPrefix(name, "vlan_"): // bridge-vlan
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

// kernelAtLeast compares the running kernel.
func kernelAtLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		t.Fatal(err)
	}
	return a > major || a == major && b >= minor
}

// newBench is two namespaces with a parent in the first; the link ends up in the
// second, under a name that the first one has too.
func newTargets(t *testing.T) (here, there *netns.NS, to link.Target) {
	t.Helper()
	here, there = newNS(t, "here"), newNS(t, "there")
	parent, _ := cable(t, here, "parent", here, "wire")
	must(t, parent.SetMTU(4000))
	must(t, find(t, here, "wire").SetMTU(4000))
	addr(t, parent, "198.51.100.1/24")
	cable(t, here, "probe", here, "wire2") // so that the name is taken here
	return here, there, link.Target{NS: there, PeerNS: here}
}

// parameters makes each full spec, and checks on its way all that holds for
// every kind.
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
			t.Errorf("second link of one name: %v, want ErrExists", err)
		}
		if again, err := link.Find(l.NS(), l.Name()); err != nil || again.Index() != l.Index() {
			t.Errorf("after a second link of its name was refused, the first is gone: %v", err)
		}
		exercise(t, l)
		must(t, l.Close())
		must(t, l.Close()) // twice is harmless
		checkSnapshot(t, before, here, there)
	}
}

// asAsked compares what was read back with what was asked for; what was left to
// the kernel may be anything.
func checkReadBack(t *testing.T, spec, got link.Spec) {
	t.Helper()
	have := link.Params(got)
	for name, want := range link.Params(spec) {
		hidden := want == "(hidden)"
		if have[name] != want || hidden && got != spec {
			t.Errorf("%s %s was read back as %q, want %q", spec.Kind(), name, have[name], want)
		}
	}
}

// use gives the link what links are given: an address, a queue, a route.
func exercise(t *testing.T, l *link.Link) {
	t.Helper()
	up(t, l)
	addr(t, l, "192.0.2.77/24")
	route(t, l, "203.0.113.0/24", "")
	must(t, link.Shape(l, link.Shaping{RateBitsPerSec: 1e9}))
}

// refuses tries each bad spec.
func (s suite) rejectsInvalid(t *testing.T) {
	here, there, to := newTargets(t)
	for i, r := range s.invalid { // before the trace: adapting may leave something
		s.invalid[i].spec, to = s.adaptSpec(t, here, r.spec, to)
	}
	before := takeSnapshot(t, here, there)
	for _, r := range s.invalid {
		l, err := link.Create(here, r.spec, to)
		var param *link.ParamError
		switch {
		case err == nil:
			t.Errorf("created %+v in spite of its %s", r.spec, r.param)
			l.Close()
		case !errors.As(err, &param):
			t.Errorf("%+v: error is %v, want a *ParamError for %s", r.spec, err, r.param)
		case param.Param != r.param || param.Allowed == "":
			t.Errorf("%+v: error names %s, want %s: %v", r.spec, param.Param, r.param, err)
		}
	}
	checkSnapshot(t, before, here, there)
}
