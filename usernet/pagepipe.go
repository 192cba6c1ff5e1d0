package usernet

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// pagePipe is a pipe that holds pages on their way from one socket to another.
type pagePipe struct{ readFD, writeFD, size int }

const (
	// pipeBytes is a pipe's capacity, unless the kernel allows less (fs.pipe-max-size).
	pipeBytes = 512 << 10
	// maxPipes bounds the pipes of one Stack. A pipe is in use only while it holds bytes,
	// which is while the receiving socket is full. Without a pipe, bytes are copied.
	maxPipes = 32
	// The kernel limits the pages in all pipes of a user. Beyond the limit new pipes get
	// only two pages (fs/pipe.c, pipe-user-pages-soft; 64 MiB by default). A Stack takes
	// at most a quarter, because other programs of the user have pipes as well.
	pipeShare = 4
	// pipeRetryDelay is how long a Stack makes no pipes after the kernel has refused one.
	pipeRetryDelay = time.Second
)

// pipeBudget is how many more pipes the engines of one Stack may make, and of what size.
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

// readLimit returns one of the kernel's limits under /proc/sys/fs, or fallback if it
// can't be read.
func readLimit(name string, fallback int64) int64 {
	text, _ := os.ReadFile("/proc/sys/fs/" + name)
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return fallback
	}
	return n
}

// maxFor returns how many pipes a Stack may have if a user may have the given bytes in
// pipes; 0 bytes: no limit.
func (b *pipeBudget) maxFor(bytes int64) int64 {
	if bytes <= 0 {
		return maxPipes
	}
	return min(bytes/pipeShare/int64(b.bytes), maxPipes)
}

// pipePool holds the empty pipes of one engine.
type pipePool struct {
	budget  *pipeBudget
	ledger  *ledger.Ledger
	free    []*pagePipe
	retryAt int64 // get makes no pipe before this time on the loop's clock
}

// get returns an empty pipe, or nil if there is none.
func (p *pipePool) get(now int64) *pagePipe {
	if n := len(p.free); n > 0 {
		q := p.free[n-1]
		p.free = p.free[:n-1]
		return q
	}
	if now < p.retryAt {
		return nil
	}
	if p.budget.remaining.Add(-1) < 0 || !p.ledger.Charge(pipeCost) {
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

// newPipe makes a pipe. It returns an error if the kernel does not grant the full size:
// then the user's limit is reached, and the rest of it is for other programs.
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

func (p *pipePool) put(q *pagePipe) { p.free = append(p.free, q) }

// discard closes a pipe, whether it holds bytes or not.
func (p *pipePool) discard(q *pagePipe) {
	q.close()
	p.ledger.Refund(pipeCost)
	p.budget.remaining.Add(1)
}

// trim closes the pipes in the pool, so that other engines and programs may have them.
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
