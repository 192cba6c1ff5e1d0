package remote

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"cleat/bench/wiring"
	"cleat/link"
)

// Message is what machines exchange. Op says what it is.
type Message struct {
	ID    uint64          `json:"id,omitempty"` // of the request
	Op    Op              `json:"op"`
	Body  json.RawMessage `json:"body,omitempty"`  // of the type that Op names
	Data  []byte          `json:"data,omitempty"`  // of OpInput, OpOutput, OpErrors; empty: the stream ends
	Error *Failure        `json:"error,omitempty"` // of OpReply and OpExit
}

// Op is the kind of a message.
type Op string

// Messages to an agent. All but OpPing, OpInput and OpKill are answered by an OpReply.
const (
	OpPing    Op = "ping"
	OpHello   Op = "hello"   // → Hello
	OpHost    Op = "host"    // → the output of `cleat doctor --json`
	OpCheck   Op = "check"   // names of networks → []*Failure, nil for those that it can build
	OpStart   Op = "start"   // Start → nothing
	OpInput   Op = "input"   // of a program
	OpKill    Op = "kill"    // a program
	OpSocket  Op = "socket"  // Socket → nothing; it listens
	OpConnect Op = "connect" // Socket → nothing; then its stream, as of a program
	OpAccept  Op = "accept"  // the same, once somebody has connected to the one that listens
	OpListen  Op = "listen"  // an address → the address with a port; it listens until OpClose
	OpClose   Op = "close"   // → nothing
	OpDial    Op = "dial"    // an address with a port → Route
	OpBuild   Op = "build"   // Build → nothing
	OpRemove  Op = "remove"  // number of an OpBuild → nothing
	OpMeter   Op = "meter"   // Meter → cell.CPU, when it is over
)

// Messages of an agent.
const (
	OpPong   Op = "pong"
	OpReply  Op = "reply"
	OpOutput Op = "output" // of a program
	OpErrors Op = "errors" // of a program, its standard error
	OpExit   Op = "exit"   // of a program
)

// Hello describes a machine.
type Hello struct {
	Hostname   string   `json:"hostname"`
	Addresses  []Route  `json:"addresses"`  // at which others may reach it, IPv4 first
	Processors []int    `json:"processors"` // one of each physical core first
	Congestion []string `json:"congestion"` // TCP congestion controls that every process may use
	Root       bool     `json:"root"`
	Scratch    string   `json:"scratch"` // directory for sockets
}

// Start is a program to start.
type Start struct {
	Where
	Args []string `json:"args"`
	CPU  []int    `json:"cpu,omitempty"`
}

// Where is a namespace of a machine: a network's container, or the machine itself.
type Where struct {
	Network   uint64 `json:"network,omitempty"` // number of an OpBuild; 0: the machine
	Container int    `json:"container,omitempty"`
}

// Socket is a Unix socket.
type Socket struct {
	Path string `json:"path"`
}

// Route is a device and an address of a machine, by which others reach it, or it reaches
// others.
type Route struct {
	Device string     `json:"device"`
	Local  netip.Addr `json:"local"`
}

// Build is one machine's side of a network.
type Build struct {
	Spec  wiring.Spec `json:"spec"`
	Pairs int         `json:"pairs"`
	Side  wiring.Side `json:"side"`
}

// Meter is a window in which processor time counts.
type Meter struct {
	Wait time.Duration `json:"wait"` // from the arrival of the message on
	For  time.Duration `json:"for"`
}

// Failure is an error of another machine.
type Failure struct {
	Text  string                `json:"text"`
	Lack  *link.Lack            `json:"lack,omitempty"`
	Never *wiring.NotApplicable `json:"never,omitempty"`
}

// FailureOf returns err as a Failure; nil for nil.
func FailureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Text: err.Error()}
	errors.As(err, &f.Lack)
	errors.As(err, &f.Never)
	return f
}

func (f *Failure) Error() string { return f.Text }

// Unwrap returns what the machine lacks, or why the network does not fit.
func (f *Failure) Unwrap() error {
	switch {
	case f.Lack != nil:
		return f.Lack
	case f.Never != nil:
		return f.Never
	}
	return nil
}

// maxMessage bounds a message in bytes. The longest are a machine's description and
// pieces of a program's output.
const maxMessage = 4 << 20

// errTooLong: a message is longer than maxMessage.
var errTooLong = errors.New("message too long")

// WriteMessage writes a message with one Write.
func WriteMessage(w io.Writer, m Message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode message %q: %w", m.Op, err)
	}
	if len(text) > maxMessage {
		return fmt.Errorf("encode message %q: %w: %d bytes", m.Op, errTooLong, len(text))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// ReadMessage reads one message. It returns io.EOF where the stream ends between two.
func ReadMessage(r io.Reader) (Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Message{}, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxMessage {
		return Message{}, fmt.Errorf("read message: %w: %d bytes", errTooLong, size)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return Message{}, fmt.Errorf("read message of %d bytes: %w", size, err)
	}
	var m Message
	if err := json.Unmarshal(text, &m); err != nil {
		return Message{}, fmt.Errorf("read message: %w", err)
	}
	return m, nil
}
