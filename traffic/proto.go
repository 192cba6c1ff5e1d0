package traffic

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// protocolVersion is increased whenever different builds would misunderstand each other.
const protocolVersion = 1

var (
	// ErrVersion means that the peer uses another protocol version.
	ErrVersion = errors.New("the peer uses another version of the traffic protocol")
	// ErrNotTraffic means that the peer is not a traffic server or client.
	ErrNotTraffic = errors.New("the peer does not speak the traffic protocol")
)

// token identifies a test. It is random, so a connection that presents it belongs to the
// test.
type token [16]byte

func newToken() token {
	var t token
	rand.Read(t[:]) // never fails (crypto/rand)
	return t
}

func (t token) String() string { return hex.EncodeToString(t[:]) }

// channel is the purpose of a connection.
type channel uint8

const (
	channelControl channel = 1 // JSON messages follow
	channelStream  channel = 2 // a stream of a TCP, RR or Probe test
	channelCRR     channel = 3 // one request of a CRR test
	channelHello   channel = 4 // outside any test: the preamble is sent back
)

// preambleLen is the size of the first bytes of every TCP connection:
//
//	0  4  magic "cltt"
//	4  1  protocol version
//	5  1  channel
//	6  2  index of the stream, big-endian
//	8 16  token
const preambleLen = 24

var preambleMagic = [4]byte{'c', 'l', 't', 't'}

type preamble struct {
	channel channel
	index   uint16
	token   token
}

func (p preamble) append(b []byte) []byte {
	b = append(b, preambleMagic[:]...)
	b = append(b, protocolVersion, byte(p.channel))
	b = binary.BigEndian.AppendUint16(b, p.index)
	return append(b, p.token[:]...)
}

// parsePreamble parses the first preambleLen bytes of a connection. The error is
// ErrNotTraffic or ErrVersion.
func parsePreamble(b []byte) (preamble, error) {
	if len(b) < preambleLen || [4]byte(b) != preambleMagic {
		return preamble{}, ErrNotTraffic
	}
	if b[4] != protocolVersion {
		return preamble{}, ErrVersion
	}
	p := preamble{channel: channel(b[5]), index: binary.BigEndian.Uint16(b[6:]), token: token(b[8:preambleLen])}
	if p.channel < channelControl || p.channel > channelHello {
		return preamble{}, ErrNotTraffic
	}
	return p, nil
}

type messageKind string

const (
	kindHello   messageKind = "hello"   // client: parameters of the test
	kindReady   messageKind = "ready"   // server: data connections are accepted
	kindStart   messageKind = "start"   // client: all are connected, round N starts
	kindStarted messageKind = "started" // server: all have arrived
	kindSent    messageKind = "sent"    // sender: round N is complete
	kindReport  messageKind = "report"  // this end's counts of round N
	kindStop    messageKind = "stop"    // client: stop now and report
	kindError   messageKind = "error"   // the test is aborted
)

type message struct {
	Version int           `json:"version"`
	Kind    messageKind   `json:"kind"`
	Params  *params       `json:"params,omitempty"` // in hello
	Round   uint16        `json:"round,omitempty"`
	Report  *report       `json:"report,omitempty"`   // in sent and report
	Grace   time.Duration `json:"grace_ns,omitempty"` // in sent: silence after which the rest counts as lost
	Error   string        `json:"error,omitempty"`
}

// params are the parameters of a test that the server needs.
type params struct {
	Work         Work          `json:"work"`
	Duration     time.Duration `json:"duration_ns"`
	Omit         time.Duration `json:"omit_ns"`
	Streams      int           `json:"streams"`
	MessageBytes int           `json:"message_bytes"`
	Congestion   string        `json:"congestion,omitempty"`
	BufferBytes  int           `json:"buffer_bytes,omitempty"`
	Reverse      bool          `json:"reverse,omitempty"`
	Rate         float64       `json:"rate,omitempty"` // bit/s
	GSO          bool          `json:"gso,omitempty"`
	NoChecksum   bool          `json:"no_checksum,omitempty"`
	Early        time.Duration `json:"early_ns,omitempty"`
}

// report is what one end of a test counted in one round.
type report struct {
	Duration    time.Duration `json:"duration_ns"`
	Bytes       uint64        `json:"bytes"`
	EarlyTime   time.Duration `json:"early_time_ns,omitempty"`
	EarlyBytes  uint64        `json:"early_bytes,omitempty"`
	Gap         time.Duration `json:"gap_ns,omitempty"`  // longest pause
	Streams     []uint64      `json:"streams,omitempty"` // bytes of each TCP stream, if there are several
	Packets     uint64        `json:"packets,omitempty"`
	Unique      uint64        `json:"unique,omitempty"` // packets without duplicates
	Reordered   uint64        `json:"reordered,omitempty"`
	Duplicated  uint64        `json:"duplicated,omitempty"`
	Jitter      time.Duration `json:"jitter_ns,omitempty"`
	LagP99      time.Duration `json:"lag_p99_ns,omitempty"`
	Retransmits uint64        `json:"retransmits,omitempty"`
	MSS         int           `json:"mss,omitempty"`
	Congestion  string        `json:"congestion,omitempty"`
	Buffer      int           `json:"buffer,omitempty"` // bytes, as granted by the kernel
	Partial     bool          `json:"partial,omitempty"`
	Warnings    []string      `json:"warnings,omitempty"`
}

// Limits of a control message in bytes, so that an invalid length does not make us
// allocate.
const (
	maxFrame = 64 << 10 // to a client: a report of MaxStreams streams needs 21 bytes a stream
	maxOrder = 4 << 10  // to a server, which receives no such report
)

// writeMessage writes one frame: 4 bytes of length, big-endian, and JSON.
func writeMessage(w io.Writer, m message) error {
	m.Version = protocolVersion
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode control message %q: %w", m.Kind, err)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	if _, err := w.Write(append(frame, body...)); err != nil {
		return fmt.Errorf("write control message %q: %w", m.Kind, err)
	}
	return nil
}

// readMessage reads one frame of at most limit bytes. It returns io.EOF if the peer
// closed between two frames.
func readMessage(r io.Reader, limit int) (message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return message{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if int64(n) > int64(limit) {
		return message{}, fmt.Errorf("%w: control message of %d bytes", ErrNotTraffic, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return message{}, fmt.Errorf("read control message: %w", io.ErrUnexpectedEOF)
	}
	return parseMessage(body)
}

func parseMessage(body []byte) (message, error) {
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return message{}, fmt.Errorf("%w: %v", ErrNotTraffic, err)
	}
	if m.Version != protocolVersion {
		return message{}, fmt.Errorf("%w: %d, not %d", ErrVersion, m.Version, protocolVersion)
	}
	return m, nil
}

// validate rejects parameters that would make the server allocate or send without bound.
// They come from the network.
func (p *params) validate() error {
	if p == nil {
		return fmt.Errorf("%w: no parameters", ErrNotTraffic)
	}
	switch { // in a Config, 0 means a default, which the client has filled in
	case p.Streams < 1:
		return &ConfigError{Field: "streams", Value: strconv.Itoa(p.Streams), Want: fmt.Sprintf("1 to %d", MaxStreams)}
	case p.MessageBytes < 1:
		return &ConfigError{Field: "message", Value: strconv.Itoa(p.MessageBytes), Want: "at least 1 byte"}
	case p.Duration <= 0:
		return &ConfigError{Field: "duration", Value: p.Duration.String(), Want: "more than 0s and at most 24h"}
	}
	return Config{
		Work: p.Work, Address: "peer", Duration: p.Duration, Omit: p.Omit, Streams: p.Streams,
		MessageBytes: p.MessageBytes, BufferBytes: p.BufferBytes, Reverse: p.Reverse,
		Congestion: p.Congestion, BitsPerSecond: p.Rate, GSO: p.GSO, NoChecksum: p.NoChecksum, Early: p.Early,
	}.Validate()
}
