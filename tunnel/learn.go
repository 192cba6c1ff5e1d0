package tunnel

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// A path without a remote learns it. It has listeners, which take packets from any
// address, and once the remote is known a connected socket like every other path.
//
// The peer's probes carry the name of their path, and a path here is matched to it by the
// name, or else by its number. An authentic packet of the peer's path that comes from
// another address than the known one, and is newer than all before it, makes that address
// a candidate. A replayed or reordered packet is not newer. The candidate gets a
// challenge, and becomes the remote when it has answered. So an attacker who sends a
// packet on from an address of his own directs nothing there unless he also passes on
// what is sent to that address, and a newer packet from the known address ends the
// attempt (RFC 9000 sections 9.3 and 9.3.3). A challenge is hardly longer than the packet
// that caused it.
//
// Handshake messages move no path: they are answered where they came from, with messages
// that are no longer.

// origin is where a packet came from, and the address of this host that it was sent to.
type origin struct {
	from netip.AddrPort
	to   netip.Addr
}

// learned is the remote of a path that learns it. It is guarded by Tunnel.mu.
type learned struct {
	origin
	since   time.Time
	heardAt time.Duration // when something authentic last came from it
}

// learning is the receiving thread's part in that. Sets of paths have one bit per ID.
type learning struct {
	on     bool   // a path learns its remote
	closed uint64 // set of our paths that learn and have no listener
	origin origin // of the message being read; zero: unknown
	newest bool   // the packet being handled is newer than all others of its path

	names      [MaxPaths]string                   // by the peer's path ID; "": unknown
	matched    [MaxPaths]*path                    // our path, by the peer's path ID
	current    [MaxPaths]origin                   // by our path ID
	candidates [MaxPaths][maxCandidates]candidate // by our path ID
	proposed   uint64                             // set of our paths that have candidates
	forgotAt   time.Duration                      // when forgetSilent last ran
}

// candidate is an address that a path's remote may have changed to.
type candidate struct {
	origin
	secret       [wire.EchoBytes]byte
	challengedAt time.Duration
}

const (
	maxCandidates = 4 // of a path: an attacker's candidates must not replace the peer's
	// challengeEvery is how often a candidate may be challenged.
	challengeEvery = 100 * time.Millisecond
	// nameEvery is how often a probe carries the name of its path.
	nameEvery    = 100 * time.Millisecond
	maxNameBytes = 64
	// forgetAfter is how long a remote may be silent before it is forgotten: another host
	// may have its address by then. A peer sends something each 25 s at least.
	forgetAfter = 80 * time.Second
)

// askLocalAddress makes a socket report the address that a packet was sent to.
func askLocalAddress(fd int, v6 bool) {
	if v6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	} else {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
}

// updateLearning follows changes of the paths. It is called with mu held.
func (in *inbound) updateLearning() {
	l := &in.learning
	l.on, l.closed = false, 0
	for id, p := range in.t.paths {
		l.current[id] = origin{}
		if p == nil || !p.learns {
			continue
		}
		l.on, l.current[id] = true, p.learned.origin
		if p.listeners == [2]int{} {
			l.closed |= 1 << id
		}
	}
	for id, q := range l.matched {
		if q != nil && in.t.paths[q.id] != q {
			l.matched[id] = nil
		}
	}
	if l.on {
		in.matchPaths()
	}
}

// startSession forgets the peer's paths, but not its addresses.
func (l *learning) startSession() {
	clear(l.names[:])
	clear(l.matched[:])
	clear(l.candidates[:])
	l.proposed = 0
}

// noteOrigin records where the i-th message of the inbox came from, which has arrived at
// a socket of a path that learns its remote.
func (in *inbound) noteOrigin(p *path, i int, meta *sys.Meta) {
	l := &in.learning
	switch in.role {
	case own:
		l.origin = l.current[p.id]
	case listener:
		from := in.box.From(i)
		a := from.AddrPort()
		l.origin = origin{netip.AddrPortFrom(a.Addr().WithZone(""), a.Port()), meta.Local}
	default:
		l.origin = origin{}
	}
}

// attribute returns the path that an authentic packet belongs to, which has arrived at a
// socket of p: the one that is matched to the peer's. If the packet shows another address
// of the peer, that one is challenged.
func (in *inbound) attribute(now time.Duration, p *path, s *wire.Shim) *path {
	l := &in.learning
	r := &in.paths[s.Path]
	l.newest = s.Kind != wire.Control && (!r.known || int32(s.PathSeq-r.highestSeq) > 0)
	q := l.matched[s.Path]
	if q == nil {
		return p
	}
	switch bit := uint64(1) << q.id; {
	case l.closed&bit != 0:
		in.late = true
	case l.origin == l.current[q.id]:
		in.heardPaths |= bit
		if l.newest && l.proposed&bit != 0 { // the remote has not changed
			l.candidates[q.id] = [maxCandidates]candidate{}
			l.proposed &^= bit
		}
	case l.newest:
		in.t.mu.Lock()
		in.challenge(now, p, q)
		in.t.mu.Unlock()
	}
	return q
}

// challenge asks the sender of the packet being handled, which arrived at a socket of p
// and belongs to q, to prove that it receives what is sent to its address. It is called
// with mu held.
func (in *inbound) challenge(now time.Duration, p, q *path) {
	l := &in.learning
	if !l.origin.to.IsValid() || p.Port != q.Port || p.Local != q.Local || p.Device != q.Device {
		return
	}
	c := &l.candidates[q.id][0]
	for i := range l.candidates[q.id] {
		o := &l.candidates[q.id][i]
		if o.origin == l.origin {
			c = o
			break
		}
		if o.challengedAt < c.challengedAt {
			c = o
		}
	}
	if c.origin == l.origin && now-c.challengedAt < challengeEvery {
		return
	}
	if c.origin != l.origin {
		*c = candidate{origin: l.origin}
		rand.Read(c.secret[:]) // never fails
	}
	c.challengedAt = now
	l.proposed |= 1 << q.id
	b := wire.Append(make([]byte, wire.HeaderBytes, 64), wire.TypeEcho, c.secret[:])
	in.t.sendFrom(q, in.t.controlPacket(now, q, b), l.origin)
}

// proveAddress handles the answer to an echo on a path. It reports whether that was a
// challenge, and changes the path's remote if the answer came from the challenged
// address. It is called with mu held.
func (in *inbound) proveAddress(now time.Duration, q *path, secret [wire.EchoBytes]byte) bool {
	l := &in.learning
	if !q.learns || l.proposed&(1<<q.id) == 0 {
		return false
	}
	for _, c := range l.candidates[q.id] {
		if c.challengedAt > 0 && c.secret == secret {
			if c.origin == l.origin && in.t.moveTo(now, q, c.origin) {
				l.current[q.id] = c.origin
				l.candidates[q.id] = [maxCandidates]candidate{}
				l.proposed &^= 1 << q.id
			}
			return true
		}
	}
	return false
}

// moveTo changes the remote of a path. It reports whether it did. It is called with mu
// held, by the receiving thread.
func (t *Tunnel) moveTo(now time.Duration, p *path, to origin) bool {
	s, err := t.cfg.Opener.Connect(p.PathConfig, to.to, to.from)
	if err != nil {
		t.emit(Event{Path: p.Name, Kind: Restricted, Err: err})
		return false
	}
	samePath := p.fd >= 0 && p.learned.from.Addr() == to.from.Addr()
	mtu, search := p.mtu, p.sizeSearch
	t.releaseSocket(p, true)
	p.v6 = to.from.Addr().Is6()
	t.setSocket(p, s)
	if samePath { // a NAT gave it another port
		p.mtu, p.sizeSearch = mtu, search
	}
	p.learned = learned{to, time.Now(), now}
	if !t.sender.Path(p.id).Live() { // it is used when probes have come through
		t.sender.SetUp(p.id, false)
		t.sender.SetUp(p.id, true)
	}
	t.emit(Event{Path: p.Name, Kind: PathLearned, Remote: to.from})
	t.wakeThreads()
	return true
}

// noteHeard records which paths have delivered something: from a remote that was learned,
// or in the compat form. It is called with mu held.
func (t *Tunnel) noteHeard(now time.Duration, paths uint64) {
	for _, id := range sched.PathIDs(paths) {
		switch p := t.paths[id]; {
		case p == nil:
		case p.learns:
			p.learned.heardAt = now
		default:
			p.compat.heardAt = now
			t.noteAnswer(now, p)
		}
	}
}

// forgetSilent forgets the remotes from which nothing has come for forgetAfter.
func (in *inbound) forgetSilent(now time.Duration) {
	l := &in.learning
	if !l.on || now-l.forgotAt < time.Second {
		return
	}
	l.forgotAt = now
	t := in.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.paths {
		if p == nil || !p.learns || p.fd < 0 || now-p.learned.heardAt < forgetAfter {
			continue
		}
		was := p.learned.from
		t.sender.SetUp(p.id, false)
		t.resendUnacked(1 << p.id)
		t.releaseSocket(p, false)
		t.emit(Event{Path: p.Name, Kind: PathWaiting, Remote: was})
		t.wakeThreads()
	}
}

// sendFrom sends a packet to where an authentic one came from, from a listener of a path.
// It is called with mu held.
func (t *Tunnel) sendFrom(p *path, b []byte, to origin) {
	i := 0
	if to.from.Addr().Is6() {
		i = 1
	}
	if b == nil || p.listeners[i] <= 0 {
		return
	}
	if err := t.cfg.Opener.Refuse(p.PathConfig, to.from); err != nil {
		t.emit(Event{Path: p.Name, Kind: Restricted, Err: err})
		return
	}
	box := sys.NewOutbox(1, 1)
	at := sys.MakeAddress(to.from, false)
	box.Begin(&at)
	box.Append(b)
	box.SetSource(to.to)
	_ = box.SendOneNow(p.listeners[i], 0) // it may get lost, because it is repeated
}

// handleName handles the name of a peer's path, from a probe that arrived at a socket of
// p or of the path that is matched to it. It is called with mu held.
func (in *inbound) handleName(now time.Duration, p *path, peerPath int, name []byte) {
	l := &in.learning
	if string(name) == l.names[peerPath] || len(name) == 0 || len(name) > maxNameBytes {
		return
	}
	for id, other := range l.names { // of a path that the peer has removed
		if other == string(name) {
			l.names[id], l.matched[id] = "", nil
		}
	}
	l.names[peerPath], l.matched[peerPath] = string(name), nil
	in.matchPaths()
	q := l.matched[peerPath]
	switch {
	case q == nil:
		in.t.emit(Event{Kind: Restricted, Err: fmt.Errorf("the other end's path %q has no counterpart: each of its paths needs one here, without remote, best of the same name", name)})
	case l.newest && l.closed&(1<<q.id) == 0 && l.origin != l.current[q.id]:
		in.challenge(now, p, q)
	}
}

// matchPaths matches the peer's paths to ours that learn their remotes: by name, and what
// is left by number, or in order. It is called with mu held.
func (in *inbound) matchPaths() {
	l := &in.learning
	for id, name := range l.names {
		if q := in.t.pathNamed(name); q != nil && q.learns && l.matched[id] != q {
			l.release(q)
			in.match(id, q)
		}
	}
	for id, name := range l.names {
		if name == "" || l.matched[id] != nil || in.t.pathNamed(name) != nil {
			continue
		}
		free := in.freePaths()
		if len(free) == 0 {
			continue
		}
		q := free[0]
		for _, p := range free {
			if p.id == id {
				q = p
			}
		}
		in.match(id, q)
	}
}

// freePaths returns our paths that learn their remotes, are not matched, and are not meant
// by name. It is called with mu held.
func (in *inbound) freePaths() []*path {
	var free []*path
	for _, p := range in.t.paths {
		if p != nil && p.learns && !in.learning.isTaken(p) {
			free = append(free, p)
		}
	}
	return free
}

func (l *learning) isTaken(p *path) bool {
	for id := range l.names {
		if l.matched[id] == p || l.names[id] == p.Name {
			return true
		}
	}
	return false
}

// release ends the match of our path.
func (l *learning) release(q *path) {
	for id, p := range l.matched {
		if p == q {
			l.matched[id] = nil
		}
	}
}

func (in *inbound) match(peerPath int, q *path) {
	in.learning.matched[peerPath] = q
	in.paths[peerPath].localPath = q.id
}

// pathNamed returns the path with a name, or nil. It is called with mu held.
func (t *Tunnel) pathNamed(name string) *path {
	for _, p := range t.paths {
		if p != nil && p.Name == name {
			return p
		}
	}
	return nil
}
