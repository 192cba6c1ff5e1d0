package tunnel

import (
	"net/netip"
	"testing"
	"time"

	"cleat/tunnel/wire"
)

// newLearner returns an end whose paths learn their remotes, except those whose names
// begin with "=".
func newLearner(t *testing.T, names ...string) *Tunnel {
	t.Helper()
	first, second := keyPair(t)
	cfg := Config{Key: &Key{Private: first, Peer: second.Public()}, Opener: openFunc(func(PathConfig) (Socket, error) {
		fds, _ := loopback(t, false)
		return Socket{Listen: fds[0], Listen6: fds[1]}, nil
	})}
	for _, name := range names {
		p := PathConfig{Name: name}
		if name[0] == '=' {
			p.Name, p.Remote, p.Down = name[1:], netip.MustParseAddrPort("192.0.2.1:4754"), true
		}
		cfg.Paths = append(cfg.Paths, p)
	}
	tun, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tun.Close)
	tun.in, tun.out = newInbound(tun), newOutbound(tun)
	tun.in.updatePolls()
	return tun
}

// TestMatchPaths names the peer's paths in some order.
func TestMatchPaths(t *testing.T) {
	type named struct {
		id   int
		name string
	}
	for _, tt := range []struct {
		test  string
		ours  []string
		peers []named
		want  map[int]string // our path by the peer's ID
	}{
		{"by name", []string{"dsl", "lte"}, []named{{0, "lte"}, {1, "dsl"}}, map[int]string{0: "lte", 1: "dsl"}},
		{"by position", []string{"a", "b"}, []named{{1, "wwan0"}, {0, "eth0"}}, map[int]string{0: "a", 1: "b"}},
		{"a name displaces", []string{"dsl", "lte"}, []named{{0, "eth0"}, {1, "dsl"}}, map[int]string{0: "lte", 1: "dsl"}},
		{"the rest in order", []string{"a", "b"}, []named{{5, "x"}, {7, "y"}}, map[int]string{5: "a", 7: "b"}},
		{"too few", []string{"a"}, []named{{0, "a"}, {1, "b"}}, map[int]string{0: "a"}},
		{"one has a remote", []string{"=dsl", "lte"}, []named{{0, "dsl"}, {1, "x"}}, map[int]string{1: "lte"}},
		{"renamed", []string{"a", "b"}, []named{{0, "a"}, {0, "b"}}, map[int]string{0: "b"}},
		{"moved", []string{"a", "b"}, []named{{0, "a"}, {3, "a"}, {0, "z"}}, map[int]string{3: "a", 0: "b"}},
	} {
		t.Run(tt.test, func(t *testing.T) {
			tun := newLearner(t, tt.ours...)
			var p *path
			for _, q := range tun.paths {
				if q != nil && q.learns {
					p = q
				}
			}
			for _, n := range tt.peers {
				tun.in.handleName(0, p, n.id, []byte(n.name))
			}
			got := map[int]string{}
			for id, q := range tun.in.learning.matched {
				if q != nil {
					got[id] = q.Name
				}
			}
			if len(got) != len(tt.want) {
				t.Fatalf("got %v, want %v", got, tt.want)
			}
			for id, name := range tt.want {
				if got[id] != name {
					t.Errorf("got %v, want %v", got, tt.want)
				}
			}
		})
	}
}

// TestRemoteForgotten lets a remote be silent.
func TestRemoteForgotten(t *testing.T) {
	tun := newLearner(t, "dsl")
	p := tun.paths[0]
	fds, at := loopback(t, false)
	p.fd, p.learned = fds[0], learned{origin: origin{from: addrPort(at[1])}, heardAt: time.Second}
	tun.sender.SetUp(0, true)
	var events []Event
	tun.cfg.OnEvent = func(e Event) { events = append(events, e) }
	tun.in.forgetSilent(time.Second + forgetAfter - time.Millisecond)
	if len(events) > 0 || p.fd < 0 {
		t.Fatalf("forgotten too early: %+v", events)
	}
	tun.in.forgetSilent(2*time.Second + forgetAfter)
	if len(events) != 1 || events[0].Kind != PathWaiting || events[0].Remote != addrPort(at[1]) || p.fd >= 0 || tun.Status().Paths[0].Remote.IsValid() {
		t.Errorf("events %+v, path %+v", events, p.learned)
	}
	if st := tun.Status().Paths[0]; !st.Open || st.InUse {
		t.Errorf("the path is %+v", st)
	}
}

// TestCandidates shows packets from another address, newer ones and others, and answers to
// the challenge from there and from elsewhere.
func TestCandidates(t *testing.T) {
	tun := newLearner(t, "dsl")
	p, in := tun.paths[0], tun.in
	l := &in.learning
	var events []Event
	tun.cfg.OnEvent = func(e Event) { events = append(events, e) }
	in.handleName(0, p, 3, []byte("dsl"))
	in.paths[3].known, in.paths[3].highestSeq = true, 100
	there := origin{netip.MustParseAddrPort("192.0.2.7:4711"), netip.MustParseAddr("198.51.100.1")}
	elsewhere := origin{netip.MustParseAddrPort("192.0.2.8:4711"), there.to}
	l.origin = there
	for _, s := range []wire.Shim{{Path: 3, PathSeq: 99}, {Path: 3, PathSeq: 100}, {Path: 3, PathSeq: 101, Kind: wire.Control}} {
		if in.attribute(time.Second, p, &s); l.proposed != 0 {
			t.Errorf("%+v is a reason for a challenge", s)
		}
	}
	in.attribute(time.Second, p, &wire.Shim{Path: 3, PathSeq: 101, Kind: wire.Probe})
	c := l.candidates[0][0]
	if l.proposed != 1 || c.origin != there {
		t.Fatalf("no challenge: %+v", l.candidates[0])
	}
	l.origin = elsewhere
	if !in.proveAddress(time.Second, p, c.secret) || len(events) > 0 {
		t.Errorf("an answer from elsewhere moves the path: %+v", events)
	}
	l.origin = there
	if in.proveAddress(time.Second, p, [wire.EchoBytes]byte{1}) || len(events) > 0 {
		t.Errorf("a wrong answer moves the path: %+v", events)
	}
	// The fake opener can't connect.
	if in.proveAddress(time.Second, p, c.secret); len(events) != 1 || events[0].Kind != Restricted {
		t.Errorf("an answer does not move the path: %+v", events)
	}
	for i := range 10 { // many addresses
		l.origin = origin{netip.AddrPortFrom(there.from.Addr(), uint16(1+i)), there.to}
		in.attribute(2*time.Second+time.Duration(i), p, &wire.Shim{Path: 3, PathSeq: uint32(200 + i)})
	}
	l.origin = l.current[0] // the path's own address, which is unknown here
	if in.attribute(3*time.Second, p, &wire.Shim{Path: 3, PathSeq: 300}); l.proposed != 0 {
		t.Error("a newer packet from the path's address does not end the challenges")
	}
}

// TestAttributeAllocates handles packets of a path that has learned its remote.
func TestAttributeAllocates(t *testing.T) {
	tun := newLearner(t, "dsl")
	p, in := tun.paths[0], tun.in
	in.handleName(0, p, 0, []byte("dsl"))
	in.learning.current[0] = origin{netip.MustParseAddrPort("192.0.2.7:4711"), netip.MustParseAddr("198.51.100.1")}
	in.learning.origin = in.learning.current[0]
	shim := wire.Shim{Kind: wire.Data}
	if n := testing.AllocsPerRun(100, func() { in.attribute(time.Second, p, &shim) }); n != 0 && !raceEnabled {
		t.Errorf("%v allocations per packet", n)
	}
	if in.heardPaths != 1 {
		t.Error("the path was not heard")
	}
}
