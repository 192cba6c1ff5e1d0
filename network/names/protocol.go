package names

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// version is the version of the control protocol. It changes when the server no longer accepts
// a request that it accepted before. Each request and each answer is one line of JSON. A
// client waits for the answer to one request before it sends the next one.
const version = 1

// op is the operation of a request.
type op string

const (
	opReplace op = "replace" // needs network
	opSet     op = "set"     // needs name and change
	opDrop    op = "drop"    // needs name
	opZone    op = "zone"    // needs name
	opServe   op = "serve"   // needs socket, and two or three descriptors with the line
	opUpdate  op = "update"  // needs socket
	opStop    op = "stop"    // needs id
	opState   op = "state"
	// opWatch turns the connection into a stream: the server sends events, and the client
	// acknowledgements.
	opWatch op = "watch"
)

// request is one line to the server.
type request struct {
	Version  int      `json:"version"`
	Do       op       `json:"do"`
	Network  *Network `json:"network,omitempty"`
	Name     string   `json:"name,omitempty"` // of a network
	Change   *Change  `json:"change,omitempty"`
	Socket   *Socket  `json:"socket,omitempty"`
	ID       string   `json:"id,omitempty"`       // of a socket
	Networks []string `json:"networks,omitempty"` // to watch
}

// response is one line from the server.
type response struct {
	Version int      `json:"version"`
	Error   *Error   `json:"error,omitempty"`
	State   *State   `json:"state,omitempty"`
	Network *Network `json:"network,omitempty"`
}

// Kind classifies errors.
type Kind string

// Kinds of errors.
const (
	KindRequest  Kind = "request"   // the request is invalid; nothing was changed
	KindVersion  Kind = "version"   // the other side uses another version of the protocol
	KindNotFound Kind = "not-found" // there is no such network; nothing was changed
	KindFailed   Kind = "failed"    // the operation failed; nothing was changed
)

// Error is the server's reason for refusing a request.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Is reports whether the error is of KindNotFound and target is ErrNotFound.
func (e *Error) Is(target error) bool { return target == ErrNotFound && e.Kind == KindNotFound }

var (
	// ErrNotFound means that the server does not know the network.
	ErrNotFound = errors.New("no such network")
	// ErrNotRunning means that no server listens at the path, or that it has ended.
	ErrNotRunning = errors.New("no name server is running")
)

func badRequest(format string, args ...any) error {
	return &Error{KindRequest, fmt.Sprintf(format, args...)}
}

func notFound(network string) error {
	return &Error{KindNotFound, fmt.Sprintf("no such network: %q", network)}
}

const (
	// maxLine is the longest line: some 50,000 endpoints.
	maxLine = 16 << 20
	// sendWithin is how long the other side may take to read a line.
	sendWithin = 10 * time.Second
)

// sendLine sends a value as a line.
func sendLine(c net.Conn, v any) error {
	c.SetWriteDeadline(time.Now().Add(sendWithin))
	return json.NewEncoder(c).Encode(v)
}

// lines reads lines and the descriptors that come with them. Create it as &lines{c: conn}.
type lines struct {
	c    *net.UnixConn
	buf  []byte // received, not yet returned
	done int    // bytes of buf that the last line had
	fds  []int  // received, not yet taken
}

// maxDescriptors is the most descriptors in one message; the kernel closes others.
const maxDescriptors = 8

// next returns the next line, which is valid until the following call. Descriptors arrive
// with the first byte of their line, or before.
func (in *lines) next() ([]byte, error) {
	in.buf = in.buf[:copy(in.buf, in.buf[in.done:])]
	in.done = 0
	oob := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	for searched := 0; ; {
		if i := bytes.IndexByte(in.buf[searched:], '\n'); i >= 0 {
			in.done = searched + i + 1
			return in.buf[:in.done], nil
		}
		searched = len(in.buf)
		if searched > maxLine {
			return nil, badRequest("the line is longer than %d bytes", maxLine)
		}
		if len(in.buf) == cap(in.buf) {
			in.buf = append(make([]byte, 0, max(4096, 2*cap(in.buf))), in.buf...)
		}
		n, nOOB, _, _, err := in.c.ReadMsgUnix(in.buf[len(in.buf):cap(in.buf)], oob)
		in.takeRights(oob[:nOOB])
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, net.ErrClosed
		}
		in.buf = in.buf[:len(in.buf)+n]
	}
}

// takeRights adds received descriptors to fds.
func (in *lines) takeRights(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			in.fds = append(in.fds, fds...)
		}
	}
}

// descriptors returns the descriptors that have arrived. The caller owns them.
func (in *lines) descriptors() []int {
	fds := in.fds
	in.fds = nil
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
