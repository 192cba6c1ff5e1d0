package control

import (
	"net/netip"
	"os"
	"time"

	"cleat/tunnel"
	"cleat/tunnel/order"
	"cleat/tunnel/spec"
)

// Status is the document that GET /v1/status answers with. Names of fields are
// never used for something else; further ones may come.
type Status struct {
	Info
	UID  int       `json:"uid"` // the user that it runs as
	At   time.Time `json:"at"`  // when this was true
	Up   bool      `json:"up"`  // the other end has answered
	Used spec.Form `json:"form_in_use"`
	// Cipher is "" where nothing is encrypted.
	Cipher string `json:"cipher"`
	// MaySendBitsPerSec is what all live paths together may be sent.
	MaySendBitsPerSec float64  `json:"may_send_bits_per_second"`
	Paths             []Path   `json:"paths"` // in the order in which they came
	Counters          Counters `json:"counters"`
}

// State is what can be said of a path in a word.
type State string

// The states. A path is the first of these that it can be.
const (
	Down    State = "down"    // the file or a person says so
	Absent  State = "absent"  // there is no such device or address at present
	Waiting State = "waiting" // the other end hasn't answered yet
	Live    State = "live"
	Dead    State = "dead" // nothing gets through; it is probed until something does
)

// Path is a path in a Status.
type Path struct {
	Name            string         `json:"name"`
	State           State          `json:"state"`
	Device          string         `json:"device"`     // "": as routes say
	Local           netip.Addr     `json:"local"`      // "": the device's
	LocalPort       uint16         `json:"local_port"` // UDP
	Remote          netip.AddrPort `json:"remote"`
	LimitBitsPerSec int64          `json:"limit_bits_per_second"` // 0: none
	Weight          int            `json:"weight"`
	MTUBytes        int            `json:"mtu_bytes"`

	BitsPerSec        float64 `json:"rate_bits_per_second"`     // delivered lately
	MaySendBitsPerSec float64 `json:"may_send_bits_per_second"` // as it is measured to carry
	ShareRatio        float64 `json:"share_ratio"`              // of what all paths deliver, 0…1
	DeliveredBytes    uint64  `json:"delivered_bytes"`          // since the start, as is the next
	DeliveredPackets  uint64  `json:"delivered_packets"`
	LostPackets       uint64  `json:"lost_packets"`
	LossRatio         float64 `json:"loss_ratio"` // lately, 0…1
	RTTSeconds        float64 `json:"rtt_seconds"`
	DelaySeconds      float64 `json:"delay_seconds"` // one way, against the fastest live path
	QueueSeconds      float64 `json:"queue_seconds"` // that stands in the path
	InflightBytes     int     `json:"inflight_bytes"`
}

// Counters count since the start, in packets unless they say otherwise.
type Counters struct {
	Read          uint64  `json:"read_packets"` // from the device
	ReadBytes     uint64  `json:"read_bytes"`
	QueueDropped  uint64  `json:"queue_dropped_packets"` // the paths were full
	QueueMarked   uint64  `json:"queue_marked_packets"`  // ECN, in place of a drop
	TooBig        uint64  `json:"too_big_packets"`       // refused: no path carries them
	Sent          uint64  `json:"sent_packets"`
	Resent        uint64  `json:"resent_packets"`
	SendErrors    uint64  `json:"send_errors"`
	Received      uint64  `json:"received_packets"`
	ReceivedBytes uint64  `json:"received_bytes"`
	Strange       uint64  `json:"strange_packets"` // dropped: not understood, not authentic, of another life
	Foreign       uint64  `json:"foreign_packets"` // dropped: from an address outside the tunnel's networks
	Missing       uint64  `json:"missing_packets"` // passed over by a path of the other end's
	Writes        uint64  `json:"device_writes"`   // of super-packets
	WriteErrors   uint64  `json:"device_write_errors"`
	ReportsSent   uint64  `json:"reports_sent"`
	QueueBytes    int     `json:"queue_bytes"` // that wait for a path, now
	KeptBytes     int     `json:"kept_bytes"`  // memory of what may have to be sent again, now
	Ordering      Ordered `json:"order"`
}

// Ordered counts what putting in order came to, in packets unless they say
// otherwise.
type Ordered struct {
	Delivered  uint64 `json:"delivered_packets"`
	Held       uint64 `json:"held_packets"` // had to wait for others
	Lost       uint64 `json:"lost_packets"` // given up
	Late       uint64 `json:"late_packets"` // came after they had been given up
	Duplicates uint64 `json:"duplicate_packets"`
	Old        uint64 `json:"old_packets"`     // dropped: behind the window
	Forced     uint64 `json:"forced_packets"`  // given up for want of room or time, not on evidence
	Waiting    int    `json:"waiting_packets"` // now
	WaitBytes  int    `json:"waiting_bytes"`   // now
	MaxWaiting int    `json:"most_waiting_packets"`
}

// statusOf is the document about a target.
func statusOf(t Target, now time.Time) Status {
	s := t.Status()
	doc := Status{
		Info: t.Info(), UID: os.Getuid(), At: now, Up: s.Up, Used: spec.Form(s.Form), Cipher: s.Cipher,
		MaySendBitsPerSec: s.Rate, Paths: []Path{}, Counters: countersOf(s.Stats),
	}
	if s.Form == tunnel.Auto {
		doc.Used = spec.Auto
	}
	for _, p := range s.Paths {
		doc.Paths = append(doc.Paths, pathOf(s.Up, p))
	}
	return doc
}

// pathOf is a path of a tunnel that is up, or not yet.
func pathOf(up bool, p tunnel.PathStatus) Path {
	return Path{
		Name: p.Name, State: stateOf(up, p), Device: p.Device, Local: p.Local, LocalPort: p.Port, Remote: p.Remote,
		LimitBitsPerSec: p.Limit, Weight: max(p.Weight, 1), MTUBytes: p.MTU,
		BitsPerSec: p.BitsPerSec, MaySendBitsPerSec: p.RateBitsPerSec, ShareRatio: p.Share,
		DeliveredBytes: p.Bytes, DeliveredPackets: p.Packets, LostPackets: p.Lost, LossRatio: p.LossRate,
		RTTSeconds: p.RTT.Seconds(), DelaySeconds: p.Delay.Seconds(), QueueSeconds: p.Queue.Seconds(), InflightBytes: p.Inflight,
	}
}

func stateOf(up bool, p tunnel.PathStatus) State {
	switch {
	case p.Down:
		return Down
	case !p.Open:
		return Absent
	case !up:
		return Waiting
	case p.Live:
		return Live
	}
	return Dead
}

func countersOf(s tunnel.Stats) Counters {
	return Counters{
		Read: s.Read, ReadBytes: s.ReadBytes, QueueDropped: s.QueueDrops, QueueMarked: s.QueueMarks, TooBig: s.TooBig,
		Sent: s.Sent, Resent: s.Resent, SendErrors: s.SendErrors, Received: s.Received, ReceivedBytes: s.ReceivedBytes,
		Strange: s.Strange, Foreign: s.Foreign, Missing: s.Missing, Writes: s.Written, WriteErrors: s.WriteErrors, ReportsSent: s.Reports,
		QueueBytes: s.QueueBytes, KeptBytes: s.KeptBytes, Ordering: orderedOf(s.Order),
	}
}

func orderedOf(s order.Stats) Ordered {
	return Ordered{
		Delivered: s.Delivered, Held: s.Held, Lost: s.Lost, Late: s.Late, Duplicates: s.Duplicates, Old: s.Old,
		Forced: s.Forced, Waiting: s.Waiting, WaitBytes: s.WaitBytes, MaxWaiting: s.MaxWaiting,
	}
}
