package survey_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/survey"

	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// must fails the test at the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// node creates a namespace with a process in it.
func node(t testing.TB, name string) *lab.Node {
	t.Helper()
	n, err := lab.NewNode(name)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	p, err := n.Start(lab.Command{Args: []string{"sleep", "600"}})
	must(t, err)
	t.Cleanup(func() { p.Kill(); p.Wait() })
	return n
}

func id(t testing.TB, n *lab.Node) uint64 {
	t.Helper()
	i, err := n.NS.ID()
	must(t, err)
	return i
}

func take(t testing.TB, cfg survey.Config) *survey.Survey {
	t.Helper()
	s, err := survey.Take(t.Context(), cfg)
	must(t, err)
	return s
}

// find returns a link of a node from the survey.
func find(t testing.TB, s *survey.Survey, n *lab.Node, name string) survey.Link {
	t.Helper()
	ns := s.ByID(id(t, n))
	if ns == nil {
		t.Fatalf("%s was not found", n)
		return survey.Link{}
	}
	for _, l := range ns.Links {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("%s has no %s: %+v", n, name, ns)
	return survey.Link{}
}

// wantEnd checks that an end is a link of a node.
func wantEnd(t testing.TB, whose string, e *survey.End, n *lab.Node, name string) {
	t.Helper()
	if e == nil || e.NamespaceID != id(t, n) || e.Name != name {
		t.Errorf("%s leads to %+v, want %s/%s", whose, e, n, name)
	}
}

// TestPairsAndBridge connects two nodes by a switch, and a third one to one of them directly.
func TestPairsAndBridge(t *testing.T) {
	lab.Need(t)
	a, b, c := node(t, "a"), node(t, "b"), node(t, "c")
	sw, err := lab.NewSwitch("switch", 1500) // held only by a descriptor of this process
	must(t, err)
	t.Cleanup(func() { sw.Close() })
	portA, err := sw.Plug(lab.End{Node: a, Name: "eth0"}, 0)
	must(t, err)
	portB, err := sw.Plug(lab.End{Node: b, Name: "eth0"}, 100e6)
	must(t, err)
	must(t, lab.Connect(lab.End{Node: b, Name: "inner0"}, lab.End{Node: c, Name: "eth0"}, lab.Cable{MTU: 1400}))
	must(t, a.Address("eth0", netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")))

	names := map[uint64]survey.Name{id(t, a): {Container: "web", Runtime: "docker"}}
	s := take(t, survey.Config{Names: names})
	wantEnd(t, "a/eth0", find(t, s, a, "eth0").Peer, sw.Node, portA)
	wantEnd(t, portA, find(t, s, sw.Node, portA).Peer, a, "eth0")
	wantEnd(t, "b/eth0", find(t, s, b, "eth0").Peer, sw.Node, portB)
	wantEnd(t, "b/inner0", find(t, s, b, "inner0").Peer, c, "eth0")
	wantEnd(t, "c/eth0", find(t, s, c, "eth0").Peer, b, "inner0")
	bridge := find(t, s, sw.Node, "switch")
	if p := find(t, s, sw.Node, portA); p.Master != bridge.Index || bridge.Kind != "bridge" {
		t.Errorf("%s has master %d, want the bridge (%s), %d", portA, p.Master, bridge.Kind, bridge.Index)
	}
	if l := find(t, s, b, "eth0"); l.RateBits != 100e6 || l.Qdisc != "tbf" {
		t.Errorf("b/eth0 has qdisc %q and rate %d bit/s", l.Qdisc, l.RateBits)
	}
	if l := find(t, s, c, "eth0"); l.MTU != 1400 || !l.Up || !l.Carrier || l.Kind != "veth" || l.MAC == "" {
		t.Errorf("c/eth0 is %+v", l)
	}
	at := find(t, s, a, "eth0").Addresses
	if len(at) < 2 || at[0] != netip.MustParsePrefix("192.0.2.1/24") {
		t.Errorf("a/eth0 has %v", at)
	}
	if n := s.ByID(id(t, a)); n.Label != "web" || n.Origin != survey.OriginContainer || find(t, s, sw.Node, portA).Peer.Namespace != "web" {
		t.Errorf("a is %q (%s)", n.Label, n.Origin)
	}
	if n := s.ByID(id(t, b)); n.Processes != 1 || n.Programs[0].Name != "sleep" || n.Since.IsZero() || n.PID == 0 {
		t.Errorf("b is %+v", n)
	}
	if n := s.ByID(id(t, sw.Node)); n.Origin != survey.OriginHolder || n.Processes != 0 {
		t.Errorf("the switch is %q (%s)", n.Label, n.Origin)
	}
}

// TestStacked has devices in another namespace than their parents.
func TestStacked(t *testing.T) {
	lab.Need(t)
	host, c := node(t, "host"), node(t, "c")
	must(t, lab.Connect(lab.End{Node: host, Name: "eth0"}, lab.End{Node: c, Name: "eth0"}, lab.Cable{}))
	must(t, host.Address("eth0", netip.MustParsePrefix("192.0.2.1/24")))
	for name, spec := range map[string]link.Spec{
		"mac0": link.MacvlanSpec{Attrs: link.Attrs{Name: "mac0"}, Parent: "eth0", Mode: link.MacvlanBridge},
		"vx0":  link.VXLANSpec{Attrs: link.Attrs{Name: "vx0"}, VNI: 42, Parent: "eth0", Remote: netip.MustParseAddr("192.0.2.9")},
	} {
		if _, err := link.Create(host.NS, spec, link.Target{NS: c.NS}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	s := take(t, survey.Config{})
	mac := find(t, s, c, "mac0")
	wantEnd(t, "mac0", mac.Parent, host, "eth0")
	if mac.Kind != "macvlan" || mac.Detail != "bridge" || mac.Peer != nil {
		t.Errorf("mac0 is %+v", mac)
	}
	vx := find(t, s, c, "vx0")
	wantEnd(t, "vx0", vx.Underlay, host, "eth0")
	if vx.Detail != "VNI 42" || vx.Remote != "192.0.2.9" {
		t.Errorf("vx0 is %+v", vx)
	}
}

// TestManyAlike has namespaces that look the same from inside: the indexes of links and the numbers
// of namespaces are equal in all of them.
func TestManyAlike(t *testing.T) {
	lab.Need(t)
	const n = 12
	var left, right []*lab.Node
	for i := range n {
		a, b := node(t, fmt.Sprintf("a%d", i)), node(t, fmt.Sprintf("b%d", i))
		must(t, lab.Connect(lab.End{Node: a, Name: "eth0"}, lab.End{Node: b, Name: "eth0"}, lab.Cable{}))
		left, right = append(left, a), append(right, b)
	}
	s := take(t, survey.Config{})
	for i := range n {
		wantEnd(t, left[i].String(), find(t, s, left[i], "eth0").Peer, right[i], "eth0")
		wantEnd(t, right[i].String(), find(t, s, right[i], "eth0").Peer, left[i], "eth0")
	}
}

// TestTwoParents has links of one namespace on links of two others that have the same index. Only
// the number of the namespace distinguishes them.
func TestTwoParents(t *testing.T) {
	lab.Need(t)
	c := node(t, "c")
	var hosts []*lab.Node
	for i := range 4 {
		h, peer := node(t, fmt.Sprint("host", i)), node(t, fmt.Sprint("peer", i))
		must(t, lab.Connect(lab.End{Node: h, Name: "eth0"}, lab.End{Node: peer, Name: "eth0"}, lab.Cable{}))
		name := fmt.Sprint("mac", i)
		_, err := link.Create(h.NS, link.MacvlanSpec{Attrs: link.Attrs{Name: name}, Parent: "eth0", Mode: link.MacvlanBridge}, link.Target{NS: c.NS})
		must(t, err)
		hosts = append(hosts, h)
	}
	s := take(t, survey.Config{})
	for i, h := range hosts {
		name := fmt.Sprint("mac", i)
		wantEnd(t, name, find(t, s, c, name).Parent, h, "eth0")
	}
}

func TestNamesAndDefaults(t *testing.T) {
	lab.Need(t)
	n, err := lab.NewNode("n")
	must(t, err)
	defer n.Close()
	path := filepath.Join(t.TempDir(), "blue")
	must(t, n.NS.Pin(path))
	defer netns.Unpin(path)
	peer := node(t, "peer")
	must(t, lab.Connect(lab.End{Node: n, Name: "eth0"}, lab.End{Node: peer, Name: "eth0"}, lab.Cable{}))
	must(t, n.Address("eth0", netip.MustParsePrefix("192.0.2.2/24")))
	h, err := link.Handle(n.NS)
	must(t, err)
	defer h.Close()
	must(t, h.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr("192.0.2.1").AsSlice()}))

	s := take(t, survey.Config{})
	ns := s.ByID(id(t, n))
	if ns == nil || ns.Label != "blue" || ns.Origin != survey.OriginName || len(ns.Names) != 1 || ns.Names[0] != path {
		t.Fatalf("found %+v", ns)
	}
	if len(ns.DefaultRoutes) != 1 || ns.DefaultRoutes[0].Via != netip.MustParseAddr("192.0.2.1") || ns.DefaultRoutes[0].Link != "eth0" {
		t.Errorf("default routes %+v", ns.DefaultRoutes)
	}
	if s.Namespaces[0].Origin != survey.OriginHost {
		t.Errorf("first is %s", s.Namespaces[0].Label)
	}
}

// TestVanishing takes surveys while namespaces, processes and links come and go.
func TestVanishing(t *testing.T) {
	lab.Need(t)
	stay := node(t, "stay")
	stop := make(chan struct{})
	var churn sync.WaitGroup
	for i := range 4 {
		churn.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n, err := lab.NewNode(fmt.Sprint("churn", i))
				if err != nil {
					t.Error(err)
					return
				}
				name := fmt.Sprintf("churn%d", i)
				if err := lab.Connect(lab.End{Node: stay, Name: name}, lab.End{Node: n, Name: "eth0"}, lab.Cable{}); err != nil {
					t.Error(err)
				}
				if p, err := n.Start(lab.Command{Args: []string{"true"}}); err == nil {
					p.Wait()
				}
				n.Close()
				// The link vanishes a moment after its namespace, and only then is its name free.
				if l, err := link.Find(stay.NS, name); err == nil {
					l.Close()
				}
			}
		})
	}
	for range 60 {
		s := take(t, survey.Config{SearchDescriptors: true})
		if s.ByID(id(t, stay)) == nil {
			t.Error("the node that stays is missing")
		}
		for _, n := range s.Namespaces {
			if n.UnreadReason != "" {
				t.Errorf("%s: %s", n.Label, n.UnreadReason)
			}
		}
	}
	close(stop)
	churn.Wait()
}

// BenchmarkTake surveys 500 namespaces that are all connected to one bridge.
func BenchmarkTake(b *testing.B) {
	lab.Need(b)
	const n = 500
	sw, err := lab.NewSwitch("switch", 1500)
	must(b, err)
	b.Cleanup(func() { sw.Close() })
	for i := range n {
		c, err := lab.NewNode(fmt.Sprint("c", i))
		must(b, err)
		b.Cleanup(func() { c.Close() })
		_, err = sw.Plug(lab.End{Node: c, Name: "eth0"}, 0)
		must(b, err)
	}
	for b.Loop() {
		if s := take(b, survey.Config{SearchDescriptors: true}); len(s.Namespaces) < n {
			b.Fatalf("%d namespaces were found", len(s.Namespaces))
		}
	}
}
