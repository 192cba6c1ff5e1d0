package tunnel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cleat/internal/sys"
)

// clocked are two ends whose loops run in turn, in steps of a clock that the test moves.
// If the machine stalls, the clock is moved further, never back.
type clocked struct {
	*ends
	t       *testing.T
	now     time.Duration
	cut     [MaxPaths]bool // both directions of the path
	dead    bool           // the second end does not run
	traffic time.Duration  // between two datagrams of the first end; 0: none
	sentAt  time.Duration
	events  []Event // of the first end
}

const clockStep = 10 * time.Millisecond

func newClocked(t *testing.T, cfg Config, paths int, key bool) *clocked {
	t.Helper()
	c := &clocked{t: t, now: time.Minute}
	c.ends = newEnds(t, cfg, false, paths)
	if key {
		c.seal(t)
	}
	c.a.cfg.OnEvent = func(e Event) { c.events = append(c.events, e) }
	c.run(3 * time.Second)
	c.events = nil
	return c
}

// run lets time pass.
func (c *clocked) run(d time.Duration) {
	c.t.Helper()
	for range d / clockStep {
		c.step()
	}
}

// runUntil lets time pass until ok, and returns how much.
func (c *clocked) runUntil(what string, ok func() bool) time.Duration {
	c.t.Helper()
	for n := range 2000 {
		if ok() {
			return time.Duration(n) * clockStep
		}
		c.step()
	}
	c.t.Fatalf("not within %v: %s; %s; events: %s", 2000*clockStep, what, c.states(), c.eventText())
	return 0
}

func (c *clocked) step() {
	c.t.Helper()
	c.now = max(c.now+clockStep, c.a.now())
	for _, end := range []*Tunnel{c.a, c.b} {
		end.startedAt = time.Now().Add(-c.now)
	}
	if c.traffic > 0 && c.now-c.sentAt >= c.traffic {
		c.sentAt = c.now
		s := oneDatagram()
		c.devA.provide(s.deviceRead())
	}
	for _, end := range []*Tunnel{c.a, c.b} {
		for _, p := range end.paths {
			if p != nil && p.fd >= 0 && (c.cut[p.id] || c.dead && end == c.b) {
				receiveAll(c.t, p, sys.NewInbox([][]byte{make([]byte, 1<<16)}))
			}
		}
		if !c.dead || end == c.a {
			c.runEnd(end)
		}
	}
	c.devA.readAll()
	c.devB.readAll()
}

// runEnd does what the loops of an end do in one round.
func (c *clocked) runEnd(end *Tunnel) {
	c.t.Helper()
	c.receive(end)
	now := end.now() // after what has arrived
	end.in.noteHeard(now)
	end.in.watchAnswers(now)
	end.in.sendDueReports(now)
	o := end.out
	if err := o.read(c.now); err != nil {
		c.t.Fatal(err)
	}
	o.flush(c.now)
	o.tick(c.now)
	if h := end.handshakes; h != nil {
		h.repeatAnswers()
		h.processMessage(c.now)
		h.maintain(c.now)
	}
}

// eventText returns the events of the first end so far.
func (c *clocked) eventText() string {
	var all []string
	for _, e := range c.events {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s", e.Path, e.Kind)))
	}
	return strings.Join(all, ", ")
}

// count returns how many events of a kind there were.
func (c *clocked) count(kind EventKind) (n int) {
	for _, e := range c.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// states returns the states of the first end: of the peer, and of each path.
func (c *clocked) states() string {
	s := c.a.Status()
	text := "up"
	if s.Silent {
		text = "silent"
	}
	for _, p := range s.Paths {
		state := "dead"
		switch {
		case p.Live:
			state = "live"
		case p.InUse:
			state = "dead in use"
		}
		text += fmt.Sprintf(", %s %s", p.Name, state)
	}
	return text
}

// wantStates checks the states.
func (c *clocked) wantStates(want string) {
	c.t.Helper()
	if got := c.states(); got != want {
		c.t.Fatalf("%s, want %s; events: %s", got, want, c.eventText())
	}
}

// soonSilent is how long after its death a peer must be reported as silent.
const soonSilent = 3 * time.Second

// TestSilentPeer kills the peer, or cuts all paths, with and without a key, without and
// with data: the first end must report that within 3 s, keep sending, and report the
// return at once.
func TestSilentPeer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		key     bool
		paths   int
		cut     bool // otherwise the peer is killed
		traffic time.Duration
	}{
		{"killed, idle", false, 2, false, 0},
		{"killed, with a key", true, 2, false, 0},
		{"killed, under traffic", false, 2, false, clockStep},
		{"killed, under a ping", true, 2, false, time.Second},
		{"one path, idle", false, 1, false, 0},
		{"one path, under traffic", true, 1, false, clockStep},
		{"cut, idle", true, 3, true, 0},
		{"cut, under traffic", false, 3, true, clockStep},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newClocked(t, Config{}, tt.paths, tt.key)
			names := strings.Split("abc", "")[:tt.paths]
			all := func(peer, state string) string {
				return peer + ", " + strings.Join(names, " "+state+", ") + " " + state
			}
			c.traffic = tt.traffic
			c.run(time.Second)
			c.wantStates(all("up", "live"))
			died := c.now
			c.dead = !tt.cut
			for i := range c.cut {
				c.cut[i] = tt.cut
			}
			took := c.runUntil("silent", func() bool { return c.a.Status().Silent })
			if took > soonSilent {
				t.Errorf("reported after %v", took)
			}
			c.run(soonSilent - took)
			c.wantStates(all("silent", "dead in use"))
			if n := c.count(PathSilent); n != tt.paths || c.count(PeerSilent) != 1 {
				t.Errorf("events: %s", c.eventText())
			}
			s := c.a.Status()
			since := c.a.now() - s.AnsweredAgo
			if since > died+2*clockStep || since < died-2*probeIdle || s.Rate != 0 {
				t.Errorf("no answer since %v, died at %v; rate %v", since, died, s.Rate)
			}
			sent := c.a.stats.sent.Load()
			c.traffic = clockStep
			c.run(10 * time.Second)
			if n := c.a.stats.sent.Load() - sent; n < 100 {
				t.Errorf("only %d packets were sent while nobody answered", n)
			}
			c.wantStates(all("silent", "dead in use"))
			c.dead, c.cut, c.events = false, [MaxPaths]bool{}, nil
			if took := c.runUntil("up again", func() bool { return !c.a.Status().Silent }); took > 300*time.Millisecond {
				t.Errorf("the return was reported after %v", took)
			}
			c.runUntil("all paths live again", func() bool { return c.states() == all("up", "live") })
			if n := c.count(PathAnswers); n != tt.paths || c.count(PeerAnswers) != 1 {
				t.Errorf("events: %s", c.eventText())
			}
		})
	}
}

// TestSilentPath cuts one of two idle paths, and later the other one.
func TestSilentPath(t *testing.T) {
	for _, key := range []bool{false, true} {
		c := newClocked(t, Config{}, 2, key)
		c.cut[0] = true
		if took := c.runUntil("dead", func() bool { return c.states() == "up, a dead, b live" }); took > soonSilent {
			t.Errorf("reported after %v", took)
		}
		c.run(5 * time.Second)
		c.wantStates("up, a dead, b live")
		c.cut[1] = true
		if took := c.runUntil("silent", func() bool { return c.states() == "silent, a dead, b dead in use" }); took > soonSilent {
			t.Errorf("reported after %v", took)
		}
		c.cut[0] = false
		if took := c.runUntil("up again", func() bool { return c.states() == "up, a live, b dead" }); took > time.Second {
			t.Errorf("one path is back, and the other left, after %v", took)
		}
		c.cut[1] = false
		c.runUntil("all paths live again", func() bool { return c.states() == "up, a live, b live" })
	}
}

// TestSilentWithoutPaths takes all paths of a tunnel away, and returns one: the peer does
// not answer in between. A path that is only reopened is no reason to say so.
func TestSilentWithoutPaths(t *testing.T) {
	c := newClocked(t, Config{}, 2, false)
	set := func(name string, up bool) {
		if err := c.a.SetPath(name, up); err != nil {
			t.Fatal(err)
		}
	}
	c.a.cfg.Opener = openFunc(func(PathConfig) (Socket, error) { t.Fatal("reopened"); return Socket{}, nil })
	set("a", false)
	set("b", false)
	if took := c.runUntil("silent", func() bool { return c.a.Status().Silent }); took > soonSilent || took < time.Second {
		t.Errorf("reported after %v", took)
	}
	c.wantStates("silent, a dead, b dead")
	if err := c.a.RemovePath("a"); err != nil {
		t.Fatal(err)
	}
	fds, _ := loopback(t, false)
	c.a.cfg.Opener = openFunc(func(PathConfig) (Socket, error) { return Socket{FD: fds[0]}, nil })
	c.b.paths[1].fd = fds[1]
	c.b.socketsVersion.Add(1)
	c.events = nil
	set("b", true)
	c.runUntil("up again", func() bool { return c.states() == "up, b live" })
	if c.count(PeerAnswers) != 1 {
		t.Errorf("events: %s", c.eventText())
	}
}

// TestStarvedMachine checks that silence is not measured while the receiving thread does
// not run, and not by packets that had no time to be answered.
func TestStarvedMachine(t *testing.T) {
	c := newClocked(t, Config{}, 2, false)
	for range 5 { // neither end runs
		c.now += 20 * time.Second
		c.run(time.Second)
	}
	for range 10 { // only the first end's sending thread runs
		for range 3 * time.Second / clockStep {
			c.now += clockStep
			c.a.startedAt = time.Now().Add(-c.now)
			c.a.out.tick(c.now)
		}
		c.run(20 * time.Millisecond)
	}
	for range 10 { // the first end's sending thread does not run
		for range 3 * time.Second / clockStep {
			c.now += clockStep
			c.a.startedAt = time.Now().Add(-c.now)
			c.receive(c.a)
			c.a.in.watchAnswers(c.now)
		}
		c.run(20 * time.Millisecond)
	}
	c.run(time.Second)
	c.wantStates("up, a live, b live")
	if strings.Contains(c.eventText(), "silent") {
		t.Errorf("events: %s", c.eventText())
	}
}

// TestSilentCompat checks the compat form: without keepalives nothing is known about the
// peer, and with them the last path, which stays in use, is reported too.
func TestSilentCompat(t *testing.T) {
	c := newClocked(t, Config{Form: Compat}, 2, false)
	for _, end := range []*Tunnel{c.a, c.b} {
		end.useCompat()
	}
	c.dead = true
	c.run(10 * time.Second)
	c.wantStates("up, a live, b live")
	keepalive := func(path int) {
		c.a.in.handlePacket(c.now, c.a.paths[path], mptKeepalivePacket(), 0, 0)
	}
	for range 4 {
		keepalive(0)
		keepalive(1)
		c.run(time.Second)
	}
	c.wantStates("up, a live, b live")
	for range 6 {
		keepalive(1)
		c.run(time.Second)
	}
	c.wantStates("up, a dead, b live")
	c.run(5 * time.Second)
	c.wantStates("silent, a dead, b dead in use")
	keepalive(1)
	c.run(100 * time.Millisecond)
	c.wantStates("up, a dead, b live")
}

// TestNeverAnswered checks that a new path that never answers is dead, and that a session
// that has just begun is not silent.
func TestNeverAnswered(t *testing.T) {
	var events []Event
	e := newEnds(t, Config{Form: Native}, false, 1)
	e.a.cfg.OnEvent = func(v Event) { events = append(events, v) }
	c := &clocked{t: t, now: time.Hour, ends: e, dead: true}
	c.run(time.Second)
	c.wantStates("up, a live")
	c.runUntil("silent", func() bool { return c.states() == "silent, a dead in use" })
	if s := c.a.Status(); s.AnsweredAgo != 0 || len(events) != 2 || !strings.Contains(events[1].Err.Error(), "never answered") {
		t.Errorf("%+v, events: %v", s, events)
	}
}

// TestAnswersAllocateNothing checks the part that runs for each run of packets.
func TestAnswersAllocateNothing(t *testing.T) {
	e := newEnds(t, Config{}, false, 2)
	e.a.in.updatePolls()
	now := time.Hour
	if n := testing.AllocsPerRun(100, func() {
		now += clockStep
		for _, p := range e.a.paths[:2] {
			e.a.in.checkedUntil[p.id] = now
			p.answers.sent(now, e.a.watch.time)
			e.a.noteAnswer(now, p)
		}
		e.a.in.watchAnswers(now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestUnansweredHaveTime has one packet lost, and then several sent at once by a thread
// that had not run: those must have time for their answers.
func TestUnansweredHaveTime(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	p := e.a.paths[0]
	at := func(now time.Duration) bool {
		e.a.watch.time = now
		return e.a.unansweredTooLong(p)
	}
	p.answers.sent(0, 0)
	for i := range 5 {
		now := silentAfter - 50*time.Millisecond + time.Duration(i)*clockStep
		p.answers.sent(now, now)
	}
	if at(silentAfter + 300*time.Millisecond) {
		t.Error("silent, although the last packets had no time to be answered")
	}
	p.answers.sent(silentAfter+askEvery, silentAfter+askEvery)
	if !at(silentAfter + askEvery) {
		t.Error("not silent after three packets")
	}
}
