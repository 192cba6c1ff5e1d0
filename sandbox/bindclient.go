package sandbox

import (
	"encoding/json"
	"errors"
	"net"
	"sync"

	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// bindMessage is a message about one call of bind(2) that the setup process makes for a
// container. Several calls may be in flight. The messages of a call are:
//
//	host → setup   TID and Address, with the socket
//	setup → host   Ready: what decides about the bind has been read from thread TID
//	host → setup   Go: whether the thread still waits, so that what was read is its own
//	setup → host   Result
//
// Without Ready, because reading failed, Result comes at once.
type bindMessage struct {
	Call    uint32 // number of the call
	TID     int    `json:",omitempty"`
	Address []byte `json:",omitempty"`

	Ready  bool       `json:",omitempty"`
	Go     bool       `json:",omitempty"`
	Result unix.Errno `json:",omitempty"`
}

// bindClient has the setup process of a joined namespace bind sockets. It is safe for
// concurrent use.
type bindClient struct {
	channel *channel
	onLost  func(error) // called when the setup process is gone

	mu    sync.Mutex
	last  uint32
	calls map[uint32]chan bindMessage // nil: the setup process is gone
}

func (b *bindClient) bind(call supervisor.BindCall) unix.Errno {
	number, answers, errno := b.begin()
	if errno != 0 {
		return errno
	}
	defer b.end(number)
	if b.channel.send(bindMessage{Call: number, TID: call.TID, Address: call.Address}, call.Socket) != nil {
		return unix.EACCES
	}
	m, ok := <-answers
	waiting := call.Waiting()
	if ok && m.Ready {
		if b.channel.send(bindMessage{Call: number, Go: waiting}) != nil {
			return unix.EACCES
		}
		m, ok = <-answers
	}
	switch {
	case !waiting:
		return supervisor.CallerGone
	case !ok: // the setup process is gone
		return unix.EACCES
	}
	return m.Result
}

// maxBindCalls bounds the calls in flight. A program has one at a time. It may leave one
// behind when it ends, for as long as its file system takes.
const maxBindCalls = 1024

// begin registers a call and returns its number and the channel for its messages.
func (b *bindClient) begin() (number uint32, answers chan bindMessage, errno unix.Errno) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.calls == nil:
		return 0, nil, unix.EACCES
	case len(b.calls) >= maxBindCalls:
		return 0, nil, unix.EAGAIN
	}
	b.last++
	answers = make(chan bindMessage, 2) // all messages of one call
	b.calls[b.last] = answers
	return b.last, answers, 0
}

func (b *bindClient) end(number uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, number)
}

// run delivers messages to their calls until the setup process is gone or the connection is
// closed. Later calls fail with EACCES.
func (b *bindClient) run() {
	buf := make([]byte, maxMessage)
	var err error
	for err == nil {
		var n int
		var m bindMessage
		if n, err = b.channel.conn.Read(buf); err == nil {
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
	if !errors.Is(err, net.ErrClosed) { // not closed by Network
		b.onLost(err)
	}
}

var errBindMessage = errors.New("unexpected bind message")

func (b *bindClient) deliver(m bindMessage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	answers := b.calls[m.Call]
	if answers == nil {
		return nil // the call has ended
	}
	select {
	case answers <- m:
		return nil
	default:
		return errBindMessage
	}
}
