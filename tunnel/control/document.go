package control

import (
	"net/netip"
	"os"
	"time"

	"cleat/tunnel"
	"cleat/tunnel/spec"
)

// Status is the document that GET /v1/status returns. Fields never change their meaning;
// new ones may be added.
type Status struct {
	Info
	UID   int         `json:"uid"` // of the process
	At    time.Time   `json:"at"`  // time of the status
	State TunnelState `json:"state"`
	Up    bool        `json:"up"` // the other end answers
	// NoAnswerSince is when the other end last answered, if it does not answer any more.
	NoAnswerSince time.Time `json:"no_answer_since,omitzero"`
	FormInUse     spec.Form `json:"form_in_use"`
	// Cipher is "" if nothing is encrypted.
	Cipher string `json:"cipher"`
	// MaySendBitsPerSec is the sum over all live paths.
	MaySendBitsPerSec float64 `json:"may_send_bits_per_second"`
	Paths             []Path  `json:"paths"` // in the order in which they were added
	// Direct is whether the kernel moves the packets, without the program.
	Direct   Direct       `json:"direct"`
	Counters tunnel.Stats `json:"counters"`
}

// Direct is what the kernel moves.
type Direct struct {
	On            bool      `json:"on"` // it sends packets now
	Since         time.Time `json:"since,omitzero"`
	Why           string    `json:"why_not,omitempty"`
	SentBytes     uint64    `json:"sent_bytes"` // that have arrived, without outer headers; since the session began
	ReceivedBytes uint64    `json:"received_bytes"`
}

// TunnelState is the state of a tunnel.
type TunnelState string

// The states. In the form compat an arriving packet is an answer. Afterwards the tunnel
// counts as up, unless the other end is MPT and its keepalives stop.
const (
	TunnelWaiting TunnelState = "waiting" // the other end has not answered yet
	TunnelUp      TunnelState = "up"      // it answers
	TunnelDown    TunnelState = "down"    // it does not answer any more
)

// State is the state of a path.
type State string

// The states, in order of precedence.
const (
	Down    State = "down"    // disabled by the file or the user
	Absent  State = "absent"  // its device or address does not exist at present
	Waiting State = "waiting" // the other end has not answered yet, or its address is not known
	Live    State = "live"
	Dead    State = "dead" // nothing is answered; it is probed until something is
)

// Path is a path in a Status.
type Path struct {
	Name            string         `json:"name"`
	State           State          `json:"state"`
	InUse           bool           `json:"in_use"`                   // data is sent on it, even if it is dead because none is left that lives
	NoAnswerSince   time.Time      `json:"no_answer_since,omitzero"` // of a dead path: when it was last answered, if ever
	Device          string         `json:"device"`                   // "": routed
	Local           netip.Addr     `json:"local"`                    // the zero Addr: the device's
	LocalPort       uint16         `json:"local_port"`               // UDP
	Remote          netip.AddrPort `json:"remote"`                   // the zero AddrPort: not learned yet
	RemoteLearned   bool           `json:"remote_learned"`           // Remote is learned from the other end's packets
	RemoteSince     time.Time      `json:"remote_since,omitzero"`    // when Remote was learned
	LimitBitsPerSec int64          `json:"limit_bits_per_second"`    // 0: unlimited
	Weight          int            `json:"weight"`
	MTUBytes        int            `json:"mtu_bytes"`
	Metered         bool           `json:"metered"`

	BitsPerSec        float64 `json:"rate_bits_per_second"`     // recent delivery rate
	MaySendBitsPerSec float64 `json:"may_send_bits_per_second"` // rate at which the path may be sent to, as measured
	ShareRatio        float64 `json:"share_ratio"`              // of what all paths deliver, 0…1
	DeliveredBytes    uint64  `json:"delivered_bytes"`          // since the start, like the next three
	DeliveredPackets  uint64  `json:"delivered_packets"`
	LostPackets       uint64  `json:"lost_packets"`
	MarkedPackets     uint64  `json:"marked_packets"` // arrived with a congestion mark (ECN)
	LossRatio         float64 `json:"loss_ratio"`     // recent, 0…1
	RTTSeconds        float64 `json:"rtt_seconds"`
	DelaySeconds      float64 `json:"delay_seconds"` // one way, beyond that of the fastest live path
	QueueSeconds      float64 `json:"queue_seconds"` // standing in the path, others' included
	Contended         bool    `json:"contended"`     // others keep a queue in the path
	InflightBytes     int     `json:"inflight_bytes"`

	// MeasuringBytes is how many bytes of padding and probes the path has sent since it was
	// added, with all headers. Of these, padding takes at most PaddingLimitBytes.
	MeasuringBytes    uint64 `json:"measuring_bytes"`
	PaddingLimitBytes int    `json:"padding_limit_bytes"`
	Tripped           bool   `json:"tripped"` // it loses too much: nothing is sent again, and its rate is at the minimum
	Trips             uint64 `json:"trips"`   // how often it has been so
}

func statusOf(t Target, now time.Time) Status {
	s := t.Status()
	doc := Status{
		Info: t.Info(), UID: os.Getuid(), At: now, State: tunnelState(s), FormInUse: spec.Form(s.Form), Cipher: s.Cipher,
		MaySendBitsPerSec: s.Rate, Paths: []Path{}, Counters: s.Stats,
	}
	doc.Direct = Direct{On: s.Direct.On, Why: s.Direct.Why, SentBytes: s.Direct.SentBytes, ReceivedBytes: s.Direct.ReceivedBytes}
	if s.Direct.On {
		doc.Direct.Since = since(now, s.Direct.For)
	}
	doc.Up = doc.State == TunnelUp
	if doc.State == TunnelDown {
		doc.NoAnswerSince = since(now, s.AnsweredAgo)
	}
	if s.Form == tunnel.Auto {
		doc.FormInUse = spec.Auto
	}
	for _, p := range s.Paths {
		doc.Paths = append(doc.Paths, pathOf(now, s, p))
	}
	return doc
}

// tunnelState returns the state of a tunnel.
func tunnelState(s tunnel.Status) TunnelState {
	switch {
	case s.AnsweredAgo == 0 && (!s.Up || s.Form == tunnel.Compat):
		return TunnelWaiting
	case s.Up && !s.Silent:
		return TunnelUp
	}
	return TunnelDown
}

// since returns the time that was so long before now, or the zero Time if ago is 0.
func since(now time.Time, ago time.Duration) time.Time {
	if ago == 0 {
		return time.Time{}
	}
	return now.Add(-ago)
}

// pathOf returns the document about a path of a tunnel.
func pathOf(now time.Time, s tunnel.Status, p tunnel.PathStatus) Path {
	state, silent := stateOf(s, p), time.Time{}
	if state == Dead {
		silent = since(now, p.AnsweredAgo)
	}
	return Path{
		Name: p.Name, State: state, InUse: p.InUse, NoAnswerSince: silent, Device: p.Device, Local: p.Local, LocalPort: p.Port,
		Remote: p.Remote, RemoteLearned: p.Learns, RemoteSince: p.RemoteSince,
		LimitBitsPerSec: p.MaxRate, Weight: max(p.Weight, 1), MTUBytes: p.MTU, Metered: p.Metered,
		BitsPerSec: p.DeliveredBitsPerSec, MaySendBitsPerSec: p.RateBitsPerSec, ShareRatio: p.Share,
		DeliveredBytes: p.DeliveredBytes, DeliveredPackets: p.DeliveredPackets, LostPackets: p.LostPackets, MarkedPackets: p.MarkedPackets, LossRatio: p.LossRate,
		RTTSeconds: p.RTT.Seconds(), DelaySeconds: p.Delay.Seconds(), QueueSeconds: p.Queue.Seconds(), Contended: p.Contended, InflightBytes: p.InFlightBytes,
		MeasuringBytes: p.MeasuringBytes, PaddingLimitBytes: p.PaddingLimitBytes,
		Tripped: p.Tripped, Trips: p.Trips,
	}
}

func stateOf(s tunnel.Status, p tunnel.PathStatus) State {
	switch {
	case p.Down:
		return Down
	case !p.Open:
		return Absent
	case tunnelState(s) == TunnelWaiting, p.Learns && !p.Remote.IsValid():
		return Waiting
	case p.Live:
		return Live
	}
	return Dead
}
