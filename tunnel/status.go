package tunnel

import (
	"time"

	"cleat/tunnel/order"
	"cleat/tunnel/sched"
)

// Status is the state of a Tunnel.
type Status struct {
	Up     bool // the peer has answered, and there is a session with it
	Silent bool // the peer does not answer any more
	// AnsweredAgo is how long ago the peer last answered, or 0 if it never did. In the
	// compat form only packets that arrive count.
	AnsweredAgo time.Duration
	Form        Form
	Cipher      string  // "": not encrypted
	KeyID       string  // identifies the keys in use, and changes with each rekeying; "": not encrypted
	Rate        float64 // sum of the live paths' rates, bit/s
	Paths       []PathStatus
	Direct      DirectStatus
	Stats
}

// DirectStatus is whether packets are sent without this process (Config.Direct).
type DirectStatus struct {
	On            bool          `json:"on"`
	For           time.Duration `json:"-"`             // how long
	Why           string        `json:"why,omitempty"` // it is off; "": there is no reason but that it is not needed
	SentBytes     uint64        `json:"sent_bytes"`    // that have arrived
	ReceivedBytes uint64        `json:"received_bytes"`
}

// PathStatus is the state of a path.
type PathStatus struct {
	PathConfig
	Open  bool // the path has a socket
	InUse bool // data is sent on it: it is live, or it does not answer and no other does
	// Learns means that the path learns Remote, which is invalid while it is unknown, and
	// otherwise has been known since RemoteSince.
	Learns      bool
	RemoteSince time.Time
	// AnsweredAgo is how long ago the peer last answered something that the path carried, or
	// 0 if it never did.
	AnsweredAgo time.Duration
	// MeasuringBytes is how many bytes of padding and probes the path has sent, with the outer
	// headers, Ethernet's included. Of these, padding takes at most PaddingLimitBytes.
	MeasuringBytes    uint64
	PaddingLimitBytes int
	Share             float64 // of what all paths deliver, 0…1
	sched.Status
}

// Stats are counters since the start, in packets unless they say otherwise.
type Stats struct {
	Read          uint64      `json:"read_packets"` // from the device
	ReadBytes     uint64      `json:"read_bytes"`
	QueueDrops    uint64      `json:"queue_dropped_packets"` // because the paths were full
	QueueMarks    uint64      `json:"queue_marked_packets"`  // by ECN, instead of a drop
	TooBig        uint64      `json:"too_big_packets"`       // refused because no path carries packets of that size
	Sent          uint64      `json:"sent_packets"`
	Resent        uint64      `json:"resent_packets"`
	LateResends   uint64      `json:"late_resend_packets"` // lost, and not sent again because the peer had given them up
	SendErrors    uint64      `json:"send_errors"`
	Received      uint64      `json:"received_packets"`
	ReceivedBytes uint64      `json:"received_bytes"`
	Invalid       uint64      `json:"strange_packets"` // dropped: malformed, not authentic, or of another session
	WrongSource   uint64      `json:"foreign_packets"` // dropped: from an address outside the tunnel's networks
	Missing       uint64      `json:"missing_packets"` // from the peer's paths
	Written       uint64      `json:"device_writes"`   // super-packets to the device
	WriteErrors   uint64      `json:"device_write_errors"`
	Reports       uint64      `json:"reports_sent"`
	QueueBytes    int         `json:"queue_bytes"` // waiting for a path, now
	KeptBytes     int         `json:"kept_bytes"`  // memory of packets that may have to be sent again, now
	Order         order.Stats `json:"order"`
}

// Status returns the state of the Tunnel.
func (t *Tunnel) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	s := Status{Up: t.session.up, Silent: t.watch.silent, AnsweredAgo: ago(now, t.watch.answeredAt), Form: t.formInUse(), Stats: t.readStats()}
	if k := t.session.keys; k != nil {
		s.Cipher, s.KeyID = k.Cipher().String(), k.ID().String()
	}
	if d := &t.direct; t.cfg.Direct != nil {
		s.Direct = DirectStatus{On: d.on, Why: d.why, SentBytes: d.sum().Bytes, ReceivedBytes: d.received}
		if d.on {
			s.Direct.For = now - d.since
		}
		if d.refused != nil {
			s.Direct.Why = d.refused.Error()
		}
	}
	sum := 0.0
	for _, sp := range t.sender.Paths() {
		p := t.paths[sp.ID]
		st := PathStatus{
			PathConfig: p.PathConfig, Open: p.fd >= 0 || p.listeners != [2]int{}, Learns: p.learns,
			AnsweredAgo: ago(now, p.answers.at), Status: t.sender.Status(now, sp.ID),
		}
		if p.learns {
			st.Remote, st.RemoteSince = p.learned.from, p.learned.since
		}
		st.MTU, st.MeasuringBytes, st.PaddingLimitBytes = p.mtu, p.metering.bytes, sched.MaxPaddingBytes
		if p.Metered {
			st.PaddingLimitBytes = 0
		}
		st.InUse = st.Live && p.fd >= 0 && s.Up
		if st.Live = st.InUse && !p.answers.silent; st.Live {
			s.Rate += st.RateBitsPerSec
		}
		st.DeliveredBitsPerSec += 8 * t.direct.rates[sp.ID]
		st.DeliveredBytes += t.direct.before[sp.ID] + t.direct.arrived[sp.ID].Bytes
		sum += st.DeliveredBitsPerSec
		s.Paths = append(s.Paths, st)
	}
	for i := range s.Paths {
		if sum > 0 {
			s.Paths[i].Share = s.Paths[i].DeliveredBitsPerSec / sum
		}
	}
	return s
}

// ago returns how long ago a time was, or 0 for the time 0, which stands for never.
func ago(now, at time.Duration) time.Duration {
	if at == 0 {
		return 0
	}
	return max(now-at, 1)
}

func (t *Tunnel) readStats() Stats {
	c := &t.stats
	s := Stats{
		Read: c.read.Load(), ReadBytes: c.readBytes.Load(), QueueDrops: c.queueDrops.Load(), QueueMarks: c.queueMarks.Load(),
		TooBig: c.tooBig.Load(), Sent: c.sent.Load(), Resent: c.resent.Load(), LateResends: c.lateResends.Load(), SendErrors: c.sendErrors.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(), Invalid: c.invalid.Load(), WrongSource: c.wrongSource.Load(),
		Written: c.written.Load(), WriteErrors: c.writeErrors.Load(), Reports: c.reports.Load(), Missing: c.missing.Load(),
		QueueBytes: int(c.queued.Load()), KeptBytes: t.arena.keptBytes(),
	}
	if o := c.order.Load(); o != nil {
		s.Order = *o
	}
	return s
}

func (in *inbound) publish(now time.Duration) {
	if now-in.publishedAt < 100*time.Millisecond {
		return
	}
	in.publishedAt = now
	s := in.pastStats
	s.Add(in.buf.Stats())
	in.t.stats.order.Store(&s)
}
