package mptcp_test

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/mptcp"
)

// dual returns a node with three dual-stack links, and a neighbour at their ends.
func dual(t *testing.T) *lab.Node {
	t.Helper()
	a, b := node(t, "a"), node(t, "b")
	cables(t, a, b, 3)
	for i := 1; i <= 3; i++ {
		must(t, a.Address(devices("d", i)[i-1], netip.MustParsePrefix(addr6(i, 1)+"/64")))
		must(t, b.Address(devices("p", i)[i-1], netip.MustParsePrefix(addr6(i, 2)+"/64")))
	}
	return a
}

func TestPlanOfBothFamilies(t *testing.T) {
	need(t)
	a := dual(t)
	before := snapshot(t, a.NS)
	cfg := config(t, a, "d1", "d2", "d3")
	p := plan(t, cfg)
	steps := strings.Join(p.Steps(), "\n")
	for _, want := range []string{
		"ip mptcp limits set subflows ",
		"ip route add 198.51.100.16/28 dev d2 table 26",
		"ip route add unreachable default table 26",
		"ip -6 route add 2001:db8:3::/64 dev d3 metric ",
		"ip -6 rule add from 2001:db8:1::1 table 26",
		"ip mptcp endpoint add 198.51.100.33 id 3 subflow",
		"ip mptcp endpoint add 2001:db8:3::1 id 6 subflow",
	} {
		if !strings.Contains(steps, want) {
			t.Errorf("there is no step %q in\n%s", want, steps)
		}
	}
	same(t, "after planning", snapshot(t, a.NS), before)
	must(t, p.Apply())
	if again := plan(t, cfg); len(again.Steps()) != 0 {
		t.Errorf("a second time there is to do:\n%s", strings.Join(again.Steps(), "\n"))
	}
	must(t, undoing(t, cfg).Apply())
	same(t, "after undo", snapshot(t, a.NS), before)
	if again := undoing(t, cfg); len(again.Steps()) != 0 {
		t.Errorf("a second undo would:\n%s", strings.Join(again.Steps(), "\n"))
	}
	if state, err := mptcp.ReadState(a.NS, cfg.Dir); state != nil || err != nil {
		t.Errorf("state is left: %+v, %v", state, err)
	}
}

var errTrial = errors.New("trial")

// Whichever step fails, everything is as before: in a first setup, in one for other
// devices, and in an undo.
func TestAllOrNothing(t *testing.T) {
	need(t)
	a := dual(t)
	cfg := config(t, a, "d1", "d2", "d3")
	other := cfg
	other.Devices, other.FullMesh = []string{"d2", "d3"}, true
	for _, tt := range []struct {
		name  string
		first func()
		plan  func() *mptcp.Plan
	}{
		{"first", func() {}, func() *mptcp.Plan { return plan(t, cfg) }},
		{"others", func() { setUp(t, cfg) }, func() *mptcp.Plan { return plan(t, other) }},
		{"undo", func() {}, func() *mptcp.Plan { return undoing(t, cfg) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.first()
			before := snapshot(t, a.NS)
			stateBefore, err := mptcp.ReadState(a.NS, cfg.Dir)
			must(t, err)
			n := len(tt.plan().Steps())
			if n < 5 {
				t.Fatalf("there are %d steps", n)
			}
			for i := range n {
				p := tt.plan()
				p.FailBefore(i, errTrial)
				if err := p.Apply(); !errors.Is(err, errTrial) {
					t.Errorf("step %d: got %v", i, err)
				}
				same(t, p.Steps()[i]+" failed", snapshot(t, a.NS), before)
				state, err := mptcp.ReadState(a.NS, cfg.Dir)
				if err != nil || (state == nil) != (stateBefore == nil) || state != nil && !slices.Equal(state.Endpoints, stateBefore.Endpoints) {
					t.Errorf("step %d: state is %+v, %v", i, state, err)
				}
			}
		})
	}
}

// A killed run leaves nothing that an undo, or the next run, does not find.
func TestKilled(t *testing.T) {
	need(t)
	a := dual(t)
	cfg := config(t, a, "d1", "d2", "d3")
	before := snapshot(t, a.NS)
	n := len(plan(t, cfg).Steps())
	for i := range n + 1 {
		must(t, plan(t, cfg).ApplyAndDie(i))
		must(t, undoing(t, cfg).Apply())
		same(t, "undone after a run that was killed", snapshot(t, a.NS), before)
		must(t, plan(t, cfg).ApplyAndDie(i))
		setUp(t, cfg)
		u := undoing(t, cfg)
		must(t, u.ApplyAndDie(min(i, len(u.Steps()))))
		must(t, undoing(t, cfg).Apply())
		same(t, "undone after a second run, and an undo that was killed", snapshot(t, a.NS), before)
	}
}

func TestOtherDevicesReplace(t *testing.T) {
	need(t)
	a := dual(t)
	cfg := config(t, a, "d1", "d2")
	cfg.Family = 4
	before := snapshot(t, a.NS)
	setUp(t, cfg)
	cfg.Devices = []string{"d3", "d2"}
	setUp(t, cfg)
	got, err := link.MPTCPEndpoints(a.NS)
	must(t, err)
	var addrs []string
	for _, e := range got {
		addrs = append(addrs, e.Addr.String())
	}
	if slices.Sort(addrs); !slices.Equal(addrs, []string{addr4(2, 1), addr4(3, 1)}) {
		t.Errorf("endpoints are %v", addrs)
	}
	must(t, undoing(t, cfg).Apply())
	same(t, "after undo", snapshot(t, a.NS), before)
}

// What others made stays, whether or not it is in the way.
func TestOthersStay(t *testing.T) {
	need(t)
	a := dual(t)
	cfg := config(t, a, "d1", "d2")
	cfg.Family = 4
	theirs := link.MPTCPEndpoint{Addr: netip.MustParseAddr(addr4(1, 1)), ID: 1, Subflow: true}
	must(t, link.AddMPTCPEndpoint(a.NS, theirs))
	before := snapshot(t, a.NS)
	p := setUp(t, cfg)
	if len(p.Notes) != 1 {
		t.Errorf("notes are %q, want one about the endpoint", p.Notes)
	}
	must(t, link.SetMPTCPLimits(a.NS, link.MPTCPLimits{Subflows: 3, AcceptedAddAddrs: 1}))
	u := undoing(t, cfg)
	if len(u.Notes) != 1 {
		t.Errorf("notes are %q, want one about the limits", u.Notes)
	}
	must(t, u.Apply())
	must(t, link.SetMPTCPLimits(a.NS, link.MPTCPLimits{Subflows: 2}))
	same(t, "after undo", snapshot(t, a.NS), before)
	cfg.FullMesh = true
	if _, err := mptcp.New(cfg); !errors.Is(err, mptcp.ErrTaken) {
		t.Errorf("another endpoint for an address: %v, want ErrTaken", err)
	}
}

// A removed device does not break the undo.
func TestDeviceGoes(t *testing.T) {
	need(t)
	a := dual(t)
	cfg := config(t, a, "d1", "d2", "d3")
	setUp(t, cfg)
	l, err := link.Find(a.NS, "d3")
	must(t, err)
	must(t, l.Close())
	must(t, undoing(t, cfg).Apply())
	for _, line := range snapshot(t, a.NS) {
		if strings.Contains(line, "protocol 162") || strings.HasPrefix(line, "endpoint") {
			t.Errorf("left is: %s", line)
		}
	}
}

// With a single link no rule is needed.
func TestNoRulesForOneLink(t *testing.T) {
	need(t)
	a, b := node(t, "a"), node(t, "b")
	cables(t, a, b, 1)
	for _, s := range plan(t, config(t, a, "d1")).Steps() {
		if strings.Contains(s, "rule") || strings.Contains(s, "route") {
			t.Errorf("step %q", s)
		}
	}
}

func TestChangedSince(t *testing.T) {
	need(t)
	a := dual(t)
	cfg := config(t, a, "d1", "d2")
	late := plan(t, cfg)
	setUp(t, cfg)
	if err := late.Apply(); !errors.Is(err, mptcp.ErrChanged) {
		t.Errorf("got %v, want ErrChanged", err)
	}
}

func TestMistakes(t *testing.T) {
	need(t)
	a, b := node(t, "a"), node(t, "b")
	cables(t, a, b, 2)
	must(t, lab.Connect(lab.End{Node: a, Name: "bare"}, lab.End{Node: b, Name: "other"}, lab.Cable{}))
	d2, err := link.Find(a.NS, "d2")
	must(t, err)
	must(t, d2.Down())
	for device, want := range map[string]string{
		"nosuch": "does not exist", "bare": "has no address", "d2": "is down", "lo": "is the loopback",
	} {
		var wrong *mptcp.DeviceError
		if _, err := mptcp.New(config(t, a, "d1", device)); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", device, err, want)
		}
	}
	must(t, a.Sysctl("net/mptcp/enabled", "0"))
	var off *mptcp.SwitchError
	if _, err := mptcp.New(config(t, a, "d1")); !errors.As(err, &off) || off.Remedy != "sysctl net.mptcp.enabled=1" {
		t.Errorf("MPTCP is off: %v", err)
	}
}

// State from before the last boot is ignored.
func TestStateOfAnotherBoot(t *testing.T) {
	need(t)
	a := dual(t)
	cfg := config(t, a, "d1", "d2")
	setUp(t, cfg)
	files, err := os.ReadDir(cfg.Dir)
	must(t, err)
	for _, f := range files {
		path := cfg.Dir + "/" + f.Name()
		text, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, []byte(strings.Replace(string(text), `"boot": "`, `"boot": "x`, 1)), 0o600))
	}
	if state, err := mptcp.ReadState(a.NS, cfg.Dir); state != nil || err != nil {
		t.Errorf("got %+v, %v; want nothing", state, err)
	}
}

// The kernel accepts as many as FindMost returned, and refuses one more.
func TestFindMost(t *testing.T) {
	need(t)
	most, err := mptcp.FindMost(t.Context())
	must(t, err)
	if most.Subflows < 1 || most.Endpoints < 1 {
		t.Fatalf("the kernel allows %+v", most)
	}
	a := node(t, "a")
	must(t, link.SetMPTCPLimits(a.NS, link.MPTCPLimits{Subflows: most.Subflows, AcceptedAddAddrs: most.Subflows}))
	if err := link.SetMPTCPLimits(a.NS, link.MPTCPLimits{Subflows: most.Subflows + 1}); err == nil {
		t.Error("the kernel takes one more than it allows")
	}
}
