package usernet

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// buffer is memory for one packet of up to 64 KiB with all its headers, or for
// a small one.
type buffer struct {
	mem  []byte
	pool *pool
}

// free gives the buffer back.
func (b *buffer) free() { b.pool.free = append(b.pool.free, b); b.pool.used-- }

// Sizes of buffers in bytes.
const (
	largeBytes = 17 << 12 // virtio header, IP header and 65535 bytes behind it
	smallBytes = 1 << 11  // a packet of the usual 1500 bytes
)

// pool hands out equal buffers from one mapping, the one that was last in use
// first. Pages count only once they have been written to.
type pool struct {
	arena []byte
	free  []*buffer
	made  int
	used  int
	size  int
}

func newPool(size, count int) (*pool, error) {
	arena, err := unix.Mmap(-1, 0, size*count, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for packets: %w", size*count, err)
	}
	// Huge pages would make an idle pool cost megabytes.
	_ = unix.Madvise(arena, unix.MADV_NOHUGEPAGE)
	return &pool{arena: arena, size: size}, nil
}

func (p *pool) close() { _ = unix.Munmap(p.arena) }

// get is a buffer, or nil when all are in use.
func (p *pool) get() *buffer {
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		p.used++
		return b
	}
	if (p.made+1)*p.size > len(p.arena) {
		return nil
	}
	from := p.made * p.size
	p.made++
	p.used++
	return &buffer{mem: p.arena[from : from+p.size : from+p.size], pool: p}
}

// empty tells whether get would fail.
func (p *pool) empty() bool { return len(p.free) == 0 && (p.made+1)*p.size > len(p.arena) }

// scarce tells whether more than half is in use.
func (p *pool) scarce() bool { return p.used*p.size > len(p.arena)/2 }

// low tells whether only a reserve is left. It is for what moves on at once;
// what waits for others to act must not take it.
func (p *pool) low() bool { return p.used*p.size > len(p.arena)/8*7 }

// trim gives the memory of a pool that is not in use back to the kernel, all
// but that of the first few buffers.
func (p *pool) trim() {
	const keep = 4
	if p.used == 0 && p.made > keep {
		_ = unix.Madvise(p.arena[keep*p.size:], unix.MADV_DONTNEED)
	}
}
