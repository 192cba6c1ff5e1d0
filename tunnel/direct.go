package tunnel

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// Direct moves packets between the device and the paths in the kernel, without this process (package
// fastpath/multipath). It knows no rates, queues or order, and sends nothing again. Its methods are called by one thread,
// with the Tunnel's lock held, and must not wait.
type Direct interface {
	// Receive has packets with a tag come out of the device. It is called again and again: paths change.
	Receive(tag uint32) error
	// Send has the device's packets sent by paths, with a tag. Without paths they can be read from the device again.
	Send(tag uint32, paths []DirectPath) error
	// Sent returns how many bytes of packets were sent, by ID of the path.
	Sent() ([MaxPaths]uint64, error)
	// Arrived returns what has arrived since the last Receive, by the peer's path IDs.
	Arrived() ([MaxPaths]wire.Arrived, error)
}

// DirectPath is a path by which packets are sent directly.
type DirectPath struct {
	ID            int
	Name          string
	Local, Remote netip.AddrPort
	Share         int // bytes that are sent in a row
}

// Packets are sent directly while paths are clean and alike, and this process is what limits them: much is sent, and the
// paths have room.
const (
	directRate     = 1e9 / 8 // bytes/s
	directAfter    = 300 * time.Millisecond
	directWindow   = 100 * time.Millisecond
	directSilence  = 250 * time.Millisecond // without a word of the peer on what arrives
	directTrial    = time.Second
	directGain     = 1.05 // how much faster it has to be than this process
	directIdleRate = 10e6 / 8
	directIdle     = 10 * time.Second

	maxDirectLoss  = 1e-3
	maxDirectLate  = 1e-2
	maxDirectDelay = time.Millisecond     // between paths
	maxDirectQueue = 5 * time.Millisecond // that round trips may become longer

	minDirectPause = 5 * time.Second
	maxDirectPause = 5 * time.Minute
	directProven   = time.Minute // without trouble: the next pause is the shortest

	directShare    = 256 << 10 // of the fastest path
	minDirectShare = 64 << 10
	tellArrived    = 20 * time.Millisecond
	askDirect      = 5 * time.Second // whether the kernel can receive
)

// direct is the state of sending directly. It is guarded by Tunnel.mu.
type direct struct {
	refused error         // why it can't be had; nil: it can
	askedAt time.Duration // when Receive was last called
	off     bool          // SetDirect

	// As the receiver.
	tag       uint64 // of the packets that come out of the device; noTag: none
	told      [MaxPaths]wire.Arrived
	toldAt    time.Duration
	arrivedAt time.Duration // when something had last arrived
	received  uint64        // bytes
	takenAt   uint64        // received, at windowAt
	taking    float64       // bytes/s, in the last window

	// What the peer says.
	peerTakes bool
	arrived   [MaxPaths]wire.Arrived

	on         bool
	since      time.Duration
	said       bool          // the peer has said something in this window
	unsaidAt   time.Duration // since then something has been sent, and the peer has said nothing; 0: it has
	set        uint64        // paths in use
	why        string        // it is off
	never      bool          // none of what was sent in this session has arrived
	retryAt    time.Duration
	pause      time.Duration
	rateBefore float64 // bytes/s

	windowAt  time.Duration
	readBytes uint64        // at windowAt
	limited   time.Duration // outbound.limited, at windowAt
	busySince time.Duration
	usedAt    time.Duration // when it last carried directIdleRate
	sent      [MaxPaths]uint64
	seen      [MaxPaths]uint64  // bytes of arrived, at windowAt
	rates     [MaxPaths]float64 // bytes/s
	before    [MaxPaths]uint64  // bytes that arrived in earlier sessions
	past      wire.Arrived      // sum of arrived, at windowAt
	first     wire.Arrived      // at the end of the first window
	firstAt   time.Duration
	lost      float64 // recent share
	late      float64
}

// SetDirect sets whether packets may be sent without this process. Those of the other end are received in any case.
func (t *Tunnel) SetDirect(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.direct.off = !on
}

// tickDirect is called with mu held.
func (o *outbound) tickDirect(now time.Duration) {
	t, d := o.t, &o.t.direct
	if t.cfg.Direct == nil || t.cfg.Key != nil || t.session.compat {
		return
	}
	tag := t.peerTag.Load()
	if tag != noTag && (tag != d.tag && d.refused == nil || now-d.askedAt >= askDirect) {
		d.askedAt, d.refused = now, t.cfg.Direct.Receive(uint32(tag))
		if d.refused == nil && tag != d.tag {
			d.tag, d.told = tag, [MaxPaths]wire.Arrived{}
			d.received, d.takenAt = 0, 0
		}
	}
	if d.refused != nil {
		t.stopDirect(now, d.refused.Error())
		return
	}
	t.tellArrived(now)
	if now-d.windowAt < directWindow {
		return
	}
	span := now - d.windowAt
	read := t.stats.readBytes.Load()
	rate := float64(read-d.readBytes) / span.Seconds()
	limited := o.limited - d.limited
	d.taking = float64(d.received-d.takenAt) / span.Seconds()
	d.windowAt, d.readBytes, d.limited, d.takenAt = now, read, o.limited, d.received
	switch {
	case d.off:
		t.stopDirect(now, "")
	case d.on:
		o.checkDirect(now, span)
		return
	}
	if rate < directRate || limited > span/4 || d.off {
		d.busySince = now
	}
	busy := now-d.busySince >= directAfter
	answers := d.taking >= directRate && !d.off // what is sent is mostly acknowledgments, which no process needs to see either
	if !busy && !answers || now < d.retryAt || !d.peerTakes || d.never {
		return
	}
	d.rateBefore = 0
	if busy {
		d.rateBefore = rate
	}
	t.startDirect(now)
}

// active reports whether packets are sent directly, or have lately come so.
func (d *direct) active(now time.Duration) bool {
	return d.on || d.arrivedAt > 0 && now-d.arrivedAt < time.Second
}

// tellArrived tells the peer what has arrived.
func (t *Tunnel) tellArrived(now time.Duration) {
	d := &t.direct
	if now-d.toldAt < tellArrived || d.tag == noTag {
		return
	}
	d.toldAt = now
	all, err := t.cfg.Direct.Arrived()
	if err != nil {
		return
	}
	b := make([]byte, wire.HeaderBytes, 256)
	var received uint64
	for id, a := range all {
		received += a.Bytes
		if a != d.told[id] {
			a.Path = uint8(id)
			b = wire.AppendArrived(b, a)
		}
	}
	d.received = received
	if len(b) == wire.HeaderBytes {
		return
	}
	d.told, d.arrivedAt = all, now
	for _, id := range sched.PathIDs(t.sender.ReportPaths(now, len(b)+reportOuter)) {
		t.sendControl(now, t.paths[id], b)
	}
}

// directPaths returns the live paths by which packets may be sent directly. Others are left out: whether it is faster
// without them is seen then. why says what is wrong with one of those.
func (t *Tunnel) directPaths(now time.Duration) (paths []DirectPath, set uint64, why string) {
	if t.sender.Mode != "" && t.sender.Mode != sched.Adaptive {
		return nil, 0, "the scheduler is another one"
	}
	fastest := 0.0
	why = "no path is live"
	for _, sp := range t.sender.Paths() {
		p := t.paths[sp.ID]
		if !sp.Live() || p.fd <= 0 {
			continue
		}
		st := t.sender.Status(now, sp.ID)
		local, err := localAddress(p.fd)
		switch {
		case err != nil:
			why = err.Error()
		case p.MaxRate > 0 || p.Metered:
			why = "the rate of path " + p.Name + " is limited"
		case st.LossRate > maxDirectLoss || st.Tripped:
			why = fmt.Sprintf("path %s loses %.2g %%", p.Name, 100*st.LossRate)
		case st.Delay > maxDirectDelay:
			why = fmt.Sprintf("path %s is %s slower than others", p.Name, st.Delay.Round(100*time.Microsecond))
		default:
			fastest = max(fastest, st.RateBitsPerSec)
			paths = append(paths, DirectPath{ID: sp.ID, Name: p.Name, Local: local, Remote: p.Remote, Share: int(st.RateBitsPerSec)})
			set |= 1 << sp.ID
		}
	}
	for i := range paths {
		paths[i].Share = max(int(directShare*float64(paths[i].Share)/fastest), minDirectShare)
	}
	return paths, set, why
}

// startDirect begins to send directly, or explains why not.
func (t *Tunnel) startDirect(now time.Duration) {
	d := &t.direct
	paths, set, why := t.directPaths(now)
	if len(paths) > 0 {
		why = ""
		if err := t.cfg.Direct.Send(t.session.tag, paths); err != nil {
			why = err.Error()
		}
	}
	if why != "" {
		d.why, d.retryAt = why, now+minDirectPause
		return
	}
	was := d.on
	d.on, d.set = true, set
	if was {
		return
	}
	d.since, d.usedAt, d.unsaidAt, d.firstAt, d.why = now, now, 0, 0, ""
	d.lost, d.late = 0, 0
	d.sent, _ = t.cfg.Direct.Sent()
	d.past = d.sum()
	t.emit(Event{Kind: DirectOn})
}

// sum returns what has arrived by all paths.
func (d *direct) sum() (s wire.Arrived) {
	for _, a := range d.arrived {
		s.Bytes += a.Bytes
		s.Lost += a.Lost
		s.Late += a.Late
	}
	return s
}

// stopDirect has packets pass this process again. Without a reason it may be tried again at once.
func (t *Tunnel) stopDirect(now time.Duration, why string) {
	d := &t.direct
	if !d.on {
		return
	}
	_ = t.cfg.Direct.Send(0, nil) // can't fail: the map exists
	if now-d.since > directProven {
		d.pause = 0
	}
	if why != "" {
		d.pause = min(max(2*d.pause, minDirectPause), maxDirectPause)
		d.retryAt = now + d.pause
	}
	d.on, d.why, d.busySince = false, why, now
	clear(d.rates[:])
	e := Event{Kind: DirectOff}
	if why != "" {
		e.Err = errors.New(why)
	}
	t.emit(e)
}

// checkDirect looks after a window whether to go on.
func (o *outbound) checkDirect(now, span time.Duration) {
	t, d := o.t, &o.t.direct
	switch _, set, why := t.directPaths(now); {
	case set == 0:
		t.stopDirect(now, why)
		return
	case set != d.set:
		t.startDirect(now)
	}
	sent, err := t.cfg.Direct.Sent()
	if err != nil {
		t.stopDirect(now, err.Error())
		return
	}
	var sentBytes uint64
	for id := range sent {
		sentBytes += sent[id] - d.sent[id]
	}
	total := d.sum()
	arrived, lost, late := float64(total.Bytes-d.past.Bytes), float64(total.Lost-d.past.Lost), float64(total.Late-d.past.Late)
	d.sent, d.past = sent, total
	for id, a := range d.arrived {
		d.rates[id] = float64(a.Bytes-d.seen[id]) / span.Seconds()
		d.seen[id] = a.Bytes
	}
	rate := arrived / span.Seconds()
	const weight = 0.1                                                   // of a window: what is told is of the last second
	d.lost += weight * (max(lost-late, 0)/max(arrived+lost, 1) - d.lost) // what is late is not lost
	d.late += weight * (late/max(arrived, 1) - d.late)
	if max(rate, d.taking) >= directIdleRate {
		d.usedAt = now
	}
	if sentBytes > 0 && !d.said && d.unsaidAt == 0 {
		d.unsaidAt = now
	}
	d.said = false
	switch {
	case d.unsaidAt > 0 && now-d.unsaidAt > directSilence:
		d.never = total.Bytes == 0 // a router between the ends may drop or change such packets
		t.stopDirect(now, "the other end does not say what arrives")
	case d.lost > maxDirectLoss:
		t.stopDirect(now, fmt.Sprintf("%.2g %% is lost", 100*d.lost))
	case d.late > maxDirectLate:
		t.stopDirect(now, fmt.Sprintf("%.2g %% arrives late", 100*d.late))
	case t.longestQueue() > maxDirectQueue:
		t.stopDirect(now, fmt.Sprintf("packets wait for %s on the way", t.longestQueue().Round(100*time.Microsecond)))
	case now-d.usedAt > directIdle:
		t.stopDirect(now, "")
	case d.firstAt == 0:
		d.first, d.firstAt = total, now
	case now-d.since > directTrial && d.rateBefore > 0:
		got := float64(total.Bytes-d.first.Bytes) / (now - d.firstAt).Seconds()
		if got < directGain*d.rateBefore {
			t.stopDirect(now, fmt.Sprintf("it is not faster: %.3g instead of %.3g Gbit/s", got*8e-9, d.rateBefore*8e-9))
		}
		d.rateBefore = 0
	}
}

// longestQueue returns by how much the round trip of a path in use is longer than the shortest one.
func (t *Tunnel) longestQueue() (longest time.Duration) {
	for set := t.direct.set; set != 0; set &= set - 1 {
		if sp := t.sender.Path(bits.TrailingZeros64(set)); sp != nil {
			longest = max(longest, sp.SmoothedRTT()-sp.MinRTT())
		}
	}
	return longest
}

// handleArrived records what the peer says. It is called with mu held.
func (t *Tunnel) handleArrived(a wire.Arrived) {
	if int(a.Path) >= MaxPaths {
		return
	}
	d := &t.direct
	before := d.arrived[a.Path]
	if a.Bytes < before.Bytes || a.Lost < before.Lost || a.Late < before.Late { // an older one, overtaken
		return
	}
	d.arrived[a.Path], d.said, d.unsaidAt = a, true, 0
}

// resetDirect forgets what belongs to the last session. It is called with mu held.
func (t *Tunnel) resetDirect() {
	t.stopDirect(t.now(), "a session has ended")
	d := &t.direct
	for id, a := range d.arrived {
		d.before[id] += a.Bytes
	}
	d.peerTakes, d.never, d.arrived, d.seen = false, false, [MaxPaths]wire.Arrived{}, [MaxPaths]uint64{}
}

// localAddress returns the address of a socket.
func localAddress(fd int) (netip.AddrPort, error) {
	a, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read a path's address: %w", err)
	}
	if a, ok := a.(*unix.SockaddrInet4); ok {
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	}
	return netip.AddrPort{}, errors.New("a path has IPv6 addresses")
}
