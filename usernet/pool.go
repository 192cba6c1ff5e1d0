package usernet

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// buffer is memory for one packet: a large one for up to 64 KiB with all headers, or a
// small one.
type buffer struct {
	mem  []byte
	pool *pool
}

// free returns the buffer to its pool.
func (b *buffer) free() { b.pool.free = append(b.pool.free, b); b.pool.used-- }

// Sizes of buffers in bytes.
const (
	largeBytes = 17 << 12 // a virtio header, an IP header and 65535 bytes
	smallBytes = 1 << 11  // a packet of the usual 1500 bytes
)

// pool hands out buffers of one size from one mapping, the one used last first. The
// kernel allocates a page when it is first written to.
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

// get returns a buffer, or nil if all are in use.
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

// empty reports whether get would return nil.
func (p *pool) empty() bool { return len(p.free) == 0 && (p.made+1)*p.size > len(p.arena) }

// scarce reports whether more than half of the buffers are in use.
func (p *pool) scarce() bool { return p.used*p.size > len(p.arena)/2 }

// low reports whether only a reserve is left. The reserve is for bytes that move on at
// once, not for bytes that wait for the guest or the host.
func (p *pool) low() bool { return p.used*p.size > len(p.arena)/8*7 }

// trim returns the memory of an unused pool to the kernel, except for the first few
// buffers.
func (p *pool) trim() {
	const keep = 4
	if p.used == 0 && p.made > keep {
		_ = unix.Madvise(p.arena[keep*p.size:], unix.MADV_DONTNEED)
	}
}
