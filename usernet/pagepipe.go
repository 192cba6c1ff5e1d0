package usernet

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"cleat/internal/ledger"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// pagePipe is where pages wait between the socket that they came from and the one
// that they go to.
type pagePipe struct{ readFD, writeFD, size int }

const (
	// pipeBytes is what a pipe holds, unless the kernel allows less (fs.pipe-max-size).
	pipeBytes = 512 << 10
	// mostPipes bounds those of one Stack. Each is in use only while it holds something,
	// which it does as long as the receiving socket is full. Without a pipe bytes are copied.
	maxPipes = 32
	// The kernel allows a user so many pages in pipes, all processes together, before it
	// gives new pipes two pages only (fs/pipe.c, pipe-user-pages-soft; 64 MiB by default).
	// A Stack takes a quarter at most: other programs of the user have pipes too.
	pipeShare = 4
	// pipeAgain is how long a Stack makes no pipes after the kernel refused one.
	pipeRetryDelay = time.Second
)

// pipeBudget is how many pipes the engines of one Stack may still make, and of what size.
type pipeBudget struct {
	remaining atomic.Int64
	bytes     int
}

func newPipeBudget() *pipeBudget {
	pages := readLimit("pipe-user-pages-soft", 16384)
	b := &pipeBudget{bytes: int(min(readLimit("pipe-max-size", 1<<20), pipeBytes))}
	b.remaining.Store(b.maxFor(pages * int64(os.Getpagesize())))
	return b
}

// readLimit is one of the kernel's limits of files; other is what it is where it can't be read.
func readLimit(name string, other int64) int64 {
	text, err := os.ReadFile("/proc/sys/fs/" + name)
	if err != nil {
		return other
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return other
	}
	return n
}

// within is how many pipes a Stack may have where a user has so many bytes; 0: any number.
func (b *pipeBudget) maxFor(bytes int64) int64 {
	if bytes <= 0 {
		return maxPipes
	}
	return min(bytes/pipeShare/int64(b.bytes), maxPipes)
}

// pipes are those of one engine that are empty.
type pipePool struct {
	budget  *pipeBudget
	ledger  *ledger.Ledger
	free    []*pagePipe
	retryAt int64 // on the loop's clock: until then the kernel is not asked for one
}

// get is an empty pipe; nil: there is none.
func (p *pipePool) get(now int64) *pagePipe {
	if n := len(p.free); n > 0 {
		q := p.free[n-1]
		p.free = p.free[:n-1]
		return q
	}
	if now < p.retryAt {
		return nil
	}
	if p.budget.remaining.Add(-1) < 0 {
		p.budget.remaining.Add(1)
		return nil
	}
	if !p.ledger.Charge(pipeCost) {
		p.budget.remaining.Add(1)
		return nil
	}
	q, err := newPipe(p.budget.bytes)
	if err != nil {
		p.retryAt = now + int64(pipeRetryDelay)
		p.ledger.Refund(pipeCost)
		p.budget.remaining.Add(1)
		return nil
	}
	return q
}

// newPipe makes a pipe. It is an error where the kernel grants none of that size: the user's
// limit is used up, and what is left of it is for others.
func newPipe(bytes int) (*pagePipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	q := &pagePipe{fds[0], fds[1], bytes}
	if _, err := unix.FcntlInt(uintptr(q.writeFD), unix.F_SETPIPE_SZ, bytes); err != nil {
		q.close()
		return nil, fmt.Errorf("make pipe of %d bytes: %w", bytes, err)
	}
	return q, nil
}

// put gives an empty pipe back.
func (p *pipePool) put(q *pagePipe) { p.free = append(p.free, q) }

// discard closes a pipe that holds something.
func (p *pipePool) discard(q *pagePipe) {
	q.close()
	p.ledger.Refund(pipeCost)
	p.budget.remaining.Add(1)
}

// trim closes those that are empty, so that other engines and programs may have them.
func (p *pipePool) trim() {
	for i, q := range p.free {
		p.discard(q)
		p.free[i] = nil
	}
	p.free = p.free[:0]
}

func (q *pagePipe) close() {
	unix.Close(q.readFD)
	unix.Close(q.writeFD)
}

// fill moves what a socket has into the pipe, which is empty.
func (q *pagePipe) fill(socket int) (int, unix.Errno) {
	return sys.SpliceNow(socket, q.writeFD, q.size)
}

// drain moves what is in the pipe into a socket.
func (q *pagePipe) drain(socket, n int) (int, unix.Errno) { return sys.SpliceNow(q.readFD, socket, n) }
