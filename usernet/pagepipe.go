package usernet

import (
	"fmt"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// pagePipe is where pages wait between the socket that they came from and the one
// that they go to.
type pagePipe struct{ from, to int }

// pipeBytes is what a pipe can hold, where the user may still have so much
// (/proc/sys/fs/pipe-user-pages-soft); else it is what the kernel gives.
const pipeBytes = 512 << 10

// mostPipes bounds those of one engine: each is in use only while it holds
// something.
const mostPipes = 64

// pipes are those that are empty.
type pipes struct {
	free []*pagePipe
	made int
}

// get is an empty pipe; nil: there is none.
func (p *pipes) get() *pagePipe {
	if n := len(p.free); n > 0 {
		q := p.free[n-1]
		p.free = p.free[:n-1]
		return q
	}
	if p.made >= mostPipes {
		return nil
	}
	q, err := newPipe()
	if err != nil {
		return nil
	}
	p.made++
	return q
}

func newPipe() (*pagePipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeBytes)
	return &pagePipe{fds[0], fds[1]}, nil
}

// put gives an empty pipe back.
func (p *pipes) put(q *pagePipe) { p.free = append(p.free, q) }

// discard closes a pipe that holds something.
func (p *pipes) discard(q *pagePipe) {
	q.close()
	p.made--
}

// close closes those that are empty.
func (p *pipes) close() {
	for _, q := range p.free {
		p.discard(q)
	}
	p.free = nil
}

func (q *pagePipe) close() {
	unix.Close(q.from)
	unix.Close(q.to)
}

// fill moves what a socket has into the pipe, which is empty.
func (q *pagePipe) fill(socket int) (int, unix.Errno) { return sys.SpliceNow(socket, q.to, pipeBytes) }

// drain moves what is in the pipe into a socket.
func (q *pagePipe) drain(socket, n int) (int, unix.Errno) { return sys.SpliceNow(q.from, socket, n) }
