package sandbox

import (
	"encoding/json"
	"errors"
	"net"
	"sync"

	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// bindMessage is what both sides say about a call of bind(2). The host's side asks, with
// the socket beside the message. The inside gathers what the caller is, and asks whether
// the caller still waits (Ready); only then is what it has gathered the caller's. It gets
// an answer (Go), and binds. At last it tells the result. Several calls may be under way.
type bindMessage struct {
	Call    uint32 // its number
	TID     int    `json:",omitempty"`
	Address []byte `json:",omitempty"`

	Ready  bool       `json:",omitempty"`
	Go     bool       `json:",omitempty"`
	Result unix.Errno `json:",omitempty"`
}

// binder asks the inside of a joined namespace, which stays for that. It is safe for
// concurrent use.
type binder struct {
	conn *net.UnixConn
	lost func(error)

	mu    sync.Mutex
	last  uint32
	calls map[uint32]chan bindMessage // nil: the inside is gone
}

func newBinder(conn *net.UnixConn, lost func(error)) *binder {
	return &binder{conn: conn, lost: lost, calls: map[uint32]chan bindMessage{}}
}

// bind is the result of a call.
func (b *binder) bind(call supervisor.BindCall) unix.Errno {
	number, answers, errno := b.begin()
	if errno != 0 {
		return errno
	}
	defer b.end(number)
	if b.write(bindMessage{Call: number, TID: call.TID, Address: call.Address}, call.Socket) != nil {
		return unix.EACCES
	}
	m, ok := <-answers
	lives := call.Waiting()
	if ok && m.Ready {
		if b.write(bindMessage{Call: number, Go: lives}) != nil {
			return unix.EACCES
		}
		m, ok = <-answers
	}
	switch {
	case !lives:
		return supervisor.CallerGone
	case !ok: // the inside is gone
		return unix.EACCES
	}
	return m.Result
}

// maxBindCalls bounds those under way. Each program has one, and may leave one behind
// when it ends, for as long as its file system takes.
const maxBindCalls = 1024

// begin gives a call a number, and the channel on which its messages come.
func (b *binder) begin() (number uint32, answers chan bindMessage, errno unix.Errno) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.calls == nil:
		return 0, nil, unix.EACCES
	case len(b.calls) >= maxBindCalls:
		return 0, nil, unix.EAGAIN
	}
	b.last++
	answers = make(chan bindMessage, 2) // as many as there are for one call
	b.calls[b.last] = answers
	return b.last, answers, 0
}

func (b *binder) end(number uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, number)
}

func (b *binder) write(m bindMessage, fds ...int) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err = b.conn.WriteMsgUnix(text, oob, nil)
	return err
}

// run hands messages to the calls that they are about, until the inside is gone or the
// connection is closed. Calls fail with EACCES from then on.
func (b *binder) run() {
	buf := make([]byte, maxMessage)
	var err error
	for err == nil {
		var n int
		var m bindMessage
		if n, err = b.conn.Read(buf); err == nil {
			err = json.Unmarshal(buf[:n], &m)
		}
		if err == nil {
			err = b.deliver(m)
		}
	}
	b.mu.Lock()
	for _, answers := range b.calls {
		close(answers)
	}
	b.calls = nil
	b.mu.Unlock()
	if !errors.Is(err, net.ErrClosed) { // by us, at the end
		b.lost(err)
	}
}

var errBindMessage = errors.New("an unexpected message")

func (b *binder) deliver(m bindMessage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	answers := b.calls[m.Call]
	if answers == nil {
		return nil // nobody waits any more
	}
	select {
	case answers <- m:
		return nil
	default:
		return errBindMessage
	}
}
