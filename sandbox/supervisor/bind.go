package supervisor

import (
	"bytes"
	"slices"
	"sync"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// bind carries out bind(2) on the program's own socket. For programs without Landlock that
// includes sockets which the supervisor does not replace, such as Unix sockets.
func (p *program) bind() {
	c, ok := p.lookUp()
	if !ok {
		return
	}
	raw, result := p.readAddress()
	if !p.waiting() {
		unix.Close(c.fd)
		return
	}
	where, err := netCookie(c.fd)
	undelivered, repeated := p.undeliveredResult(c)
	switch {
	case result != 0:
	case repeated:
		result = undelivered
	case c.inet && err != nil:
		result = errnoFor(err)
	case c.inet && where == p.s.hostNet:
		result = unix.EINVAL // it has been connected
	case !p.Landlocked:
		p.queueBind(c, raw)
		return
	default:
		result = sys.BindRaw(c.fd, raw)
		if result == unix.EADDRINUSE && p.s.loans.collect() { // a closed listener may have held the port
			result = sys.BindRaw(c.fd, raw)
		}
	}
	p.finish(c, result)
}

// queueBind makes Config.Bind carry out bind(2) with the caller's credentials. It takes
// ownership of c.fd.
func (p *program) queueBind(c socket, raw []byte) {
	if p.s.cfg.Bind == nil {
		p.finish(c, unix.EACCES)
		return
	}
	if !p.hold() {
		p.finish(c, unix.EAGAIN)
		return
	}
	b := queuedBind{c, p, BindCall{TID: int(p.call.TID), Socket: c.fd, Address: bytes.Clone(raw), Waiting: func() bool {
		return !p.s.stopped.Load() && sys.NotificationLives(p.fd, c.callID)
	}}}
	idle, ok := p.binds.add(b)
	if !ok {
		p.account.release(1)
		p.finish(c, unix.EAGAIN)
	} else if idle {
		p.s.programsDone.Go(func() {
			for b, ok := p.binds.next(); ok; b, ok = p.binds.next() {
				b.run()
			}
		})
	}
}

// queuedBind is a bind(2) that waits for its turn. It owns the socket's descriptor, which
// is charged to the program, and a use of the program's Notifications.
type queuedBind struct {
	socket
	program *program
	BindCall
}

// run carries out the call if its caller still waits. It blocks.
func (b queuedBind) run() {
	defer b.drop()
	if !b.Waiting() {
		return
	}
	result, repeated := b.program.undeliveredResult(b.socket)
	if !repeated {
		result = b.program.s.cfg.Bind(b.BindCall)
	}
	if result != CallerGone {
		b.program.answer(b.socket, result)
	}
}

func (b queuedBind) drop() {
	b.program.closeHeld(b.fd)
	b.program.release()
}

// maxBinds bounds the queued calls of a program.
const maxBinds = 64

// bindQueue holds the bind calls of a program. They run one after another, so that the
// undelivered result of one call is known before the next one runs. A bindQueue is safe for
// concurrent use.
type bindQueue struct {
	mu    sync.Mutex
	queue []queuedBind
	busy  bool // a goroutine calls next until the queue is empty
}

// add appends a call. It drops an earlier call of the same thread, which a signal must have
// interrupted: frequent signals can't fill the queue. If idle is true, the caller must
// start the goroutine that calls next. If ok is false, the queue is full.
func (q *bindQueue) add(b queuedBind) (idle, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = slices.DeleteFunc(q.queue, func(o queuedBind) bool {
		interrupted := o.TID == b.TID
		if interrupted {
			o.drop()
		}
		return interrupted
	})
	if len(q.queue) >= maxBinds {
		return false, false
	}
	b.program.users.Add(1)
	q.queue = append(q.queue, b)
	idle = !q.busy
	q.busy = true
	return idle, true
}

// next removes and returns the oldest call.
func (q *bindQueue) next() (b queuedBind, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy = len(q.queue) > 0; !q.busy {
		return b, false
	}
	b = q.queue[0]
	q.queue = slices.Delete(q.queue, 0, 1)
	return b, true
}
