package tunnel

import (
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/sched"
)

// Status is what a Tunnel is doing.
type Status struct {
	Up     bool // the peer has answered
	Form   Form
	Cipher string // "": nothing is encrypted
	KeyID  string // of the keys in use: another with each rekeying; "": nothing is encrypted
	Rate   float64
	Paths  []PathStatus
	Stats
}

// PathStatus is what a path is doing.
type PathStatus struct {
	PathConfig
	Open  bool    // it has a socket
	Share float64 // of what all paths deliver, 0…1
	sched.Status
}

// Stats are counters since the start, in packets unless they say otherwise.
type Stats struct {
	Read, ReadBytes         uint64 // from the device
	QueueDrops, QueueMarks  uint64 // dropped or marked because the paths were full
	TooBig                  uint64 // refused because no path carries packets of that size
	Sent, Resent            uint64
	SendErrors              uint64
	Received, ReceivedBytes uint64
	Strange                 uint64 // dropped: not understood, not authentic, of another life
	Foreign                 uint64 // dropped: from an address outside the tunnel's networks
	Written, WriteErrors    uint64 // super-packets to the device
	Reports                 uint64 // sent
	Missing                 uint64 // passed over by a path of the peer's
	QueueBytes              int    // that wait for a path, now
	KeptBytes               int    // memory of what may have to be sent again, now
	Order                   order.Stats
}

// Status tells what the Tunnel is doing. It may be called at any time.
func (t *Tunnel) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	s := Status{Up: t.sess.up, Form: t.form(), Rate: t.send.Rate() * 8, Stats: t.counted()}
	if k := t.sess.keys; k != nil {
		s.Cipher, s.KeyID = k.Cipher().String(), k.ID().String()
	}
	sum := 0.0
	for _, sp := range t.send.Paths() {
		p := t.paths[sp.ID]
		st := PathStatus{PathConfig: p.PathConfig, Open: p.fd >= 0, Status: t.send.Status(now, sp.ID)}
		st.MTU = p.mtu
		st.Live = st.Live && st.Open && s.Up
		sum += st.BitsPerSec
		s.Paths = append(s.Paths, st)
	}
	for i := range s.Paths {
		if sum > 0 {
			s.Paths[i].Share = s.Paths[i].BitsPerSec / sum
		}
	}
	return s
}

func (t *Tunnel) counted() Stats {
	c := &t.stats
	s := Stats{
		Read: c.read.Load(), ReadBytes: c.readBytes.Load(), QueueDrops: c.queueDrops.Load(), QueueMarks: c.queueMarks.Load(),
		TooBig: c.tooBig.Load(), Sent: c.sent.Load(), Resent: c.resent.Load(), SendErrors: c.sendErrors.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(), Strange: c.strange.Load(), Foreign: c.foreign.Load(),
		Written: c.written.Load(), WriteErrors: c.writeErrors.Load(), Reports: c.reports.Load(), Missing: c.missing.Load(),
		QueueBytes: int(c.queued.Load()), KeptBytes: t.arena.kept(),
	}
	if o := c.order.Load(); o != nil {
		s.Order = *o
	}
	return s
}

// publish makes the receiving thread's counters known.
func (in *inbound) publish(now time.Duration) {
	if now-in.published < 100*time.Millisecond {
		return
	}
	in.published = now
	s := in.past
	s.Add(in.buf.Stats())
	in.t.stats.order.Store(&s)
}
