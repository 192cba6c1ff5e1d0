package supervisor

import (
	"bytes"
	"slices"
	"sync"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// bind carries out bind(2), on the program's own socket. Its port may have been
// kept for a listener that is gone by now.
func (p *program) bind() {
	c, ok := p.take()
	if !ok {
		return
	}
	raw, result := p.readAddress()
	if !p.lives() {
		unix.Close(c.fd)
		return
	}
	where, err := cookie(c.fd)
	owed, owes := p.debt(c)
	switch {
	case result != 0:
	case owes:
		result = owed
	case err != nil:
		result = refusalFor(err)
	case where == p.s.host:
		result = unix.EINVAL // it has been connected
	case !p.KeptFromTCP:
		p.bindElsewhere(c)
		return
	default:
		if result = sys.BindRaw(c.fd, raw); result == unix.EADDRINUSE && p.s.loans.collect() {
			result = sys.BindRaw(c.fd, raw)
		}
	}
	p.finish(c, result)
}

// bindElsewhere has bind(2) carried out with the caller's rights. It owns c's.
func (p *program) bindElsewhere(c socket) {
	raw, result := p.readAddress()
	if !p.lives() {
		unix.Close(c.fd)
		return
	}
	switch {
	case result != 0:
	case p.s.cfg.Bind == nil:
		result = unix.EACCES
	case !p.room():
		result = unix.EAGAIN
	}
	if result != 0 {
		p.finish(c, result)
		return
	}
	b := Binding{TID: int(p.note.TID), Socket: c.fd, Address: bytes.Clone(raw), Lives: func() bool {
		return !p.s.over.Load() && sys.NotificationLives(p.fd, c.id)
	}}
	switch p.binds.wait(binding{c, p, b}) {
	case tooMany:
		p.account.release(1)
		p.finish(c, unix.EAGAIN)
	case first:
		p.s.working.Go(func() {
			for b, ok := p.binds.next(); ok; b, ok = p.binds.next() {
				p.bindAs(b)
			}
		})
	}
}

// bindAs carries out a call that has waited, if anybody still makes it. It is called by a
// goroutine of its own.
func (p *program) bindAs(b binding) {
	defer b.drop()
	if !b.Lives() {
		return
	}
	result, owed := p.debt(b.socket)
	if !owed {
		result = p.s.cfg.Bind(b.Binding)
	}
	if result != Left { // else nothing is owed to who calls again
		p.answer(b.socket, result)
	}
}

// binding is a call that waits to be carried out; it owns the socket's descriptor, which
// its program has been charged for.
type binding struct {
	socket
	program *program
	Binding
}

func (b binding) drop() {
	b.program.discard(b.fd)
	b.program.release()
}

// maxBinds bounds threads of a program that wait.
const maxBinds = 64

// binds are calls that are carried out one after the other: what is owed to the one
// before is known when the next has its turn.
type binds struct {
	mu    sync.Mutex
	queue []binding
	busy  bool // somebody calls next until there is none
}

// place is what a call's place in the queue means.
type place int

const (
	behind  place = iota
	first         // nobody is busy: the caller has to see to it that somebody is
	tooMany       // it has none
)

// wait has a call wait for its turn. A thread that calls again has left its call before,
// because of a signal, and that gives up its place: signals that come faster than calls
// are carried out don't make too many of them.
func (w *binds) wait(b binding) place {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = slices.DeleteFunc(w.queue, func(o binding) bool {
		left := o.TID == b.TID
		if left {
			o.drop()
		}
		return left
	})
	if len(w.queue) >= maxBinds {
		return tooMany
	}
	b.program.users.Add(1)
	w.queue = append(w.queue, b)
	if w.busy {
		return behind
	}
	w.busy = true
	return first
}

// next is the call that has waited longest.
func (w *binds) next() (b binding, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy = len(w.queue) > 0; !w.busy {
		return binding{}, false
	}
	b = w.queue[0]
	w.queue = slices.Delete(w.queue, 0, 1)
	return b, true
}
