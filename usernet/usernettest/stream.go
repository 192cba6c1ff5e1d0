package usernettest

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// maxChunk bounds the random sizes of single writes.
const maxChunk = 256 << 10

// source writes the given number of bytes, which depend on the seed, in pieces of random
// sizes, and returns their SHA-256.
func source(w io.Writer, bytes int64, seed uint64) (string, error) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	data := rand.NewChaCha8(key)
	sizes := rand.New(rand.NewPCG(seed, 0))
	hash := sha256.New()
	buf := make([]byte, maxChunk)
	for left := bytes; left > 0; {
		// The exponent is uniform, so that there are small sizes as well.
		n := min(left, 1+sizes.Int64N(1<<sizes.IntN(19)))
		data.Read(buf[:n])
		hash.Write(buf[:n])
		if _, err := w.Write(buf[:n]); err != nil {
			return "", fmt.Errorf("send, %d of %d bytes left: %w", left, bytes, err)
		}
		left -= n
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// sink reads to the end and returns the number of bytes and their SHA-256.
func sink(r io.Reader) (int64, string, error) {
	hash := sha256.New()
	n, err := io.CopyBuffer(hash, onlyReader{r}, make([]byte, maxChunk))
	if err != nil {
		err = fmt.Errorf("receive after %d bytes: %w", n, err)
	}
	return n, hex.EncodeToString(hash.Sum(nil)), err
}

// onlyReader hides WriteTo, which would use its own buffers.
type onlyReader struct{ io.Reader }

// stream is bytes that are sent over a connection in the background.
type stream struct {
	progress
	c     *net.TCPConn
	bytes int64
	done  chan sent
}

// sent is the SHA-256 of what was sent.
type sent struct {
	sum string
	err error
}

// startStream sends bytes over c, which the seed determines, and then closes c's
// sending side.
func startStream(c *net.TCPConn, bytes int64, seed uint64) *stream {
	s := &stream{progress: progress{Writer: c}, c: c, bytes: bytes, done: make(chan sent, 1)}
	go func() {
		sum, err := source(&s.progress, bytes, seed)
		if err == nil {
			err = c.CloseWrite()
		}
		s.done <- sent{sum, err}
	}()
	return s
}

// check reads the stream to its end, and compares it with what was sent.
func (s *stream) check(r io.Reader) error {
	n, got, err := sink(r)
	if err != nil {
		s.c.SetDeadline(time.Unix(1, 0)) // the rest will not be read
	}
	want := <-s.done
	if err := errors.Join(want.err, err); err != nil {
		return err
	}
	if n != s.bytes || got != want.sum {
		return fmt.Errorf("received %d bytes with SHA-256 %.8s…, sent %d with %.8s…", n, got, s.bytes, want.sum)
	}
	return nil
}

// transfer moves bytes from a to b, closes that direction, and compares.
func transfer(a, b *net.TCPConn, bytes int64, seed uint64) error {
	return startStream(a, bytes, seed).check(b)
}

// transferBytes returns how many bytes an integrity case moves.
func (x *T) transferBytes() int64 { return scaled[int64](x.Settings, 16<<20, 64<<20, 1<<30) }

func streamCases() []Case {
	// client returns the client's end of a pair, and the server's.
	client := func(d Direction, in, out *net.TCPConn) (c, server *net.TCPConn) {
		if d == In {
			return out, in
		}
		return in, out
	}
	return slices.Concat(
		forBoth("integrity/to-server", func(x *T, s *Env, d Direction, f Family) {
			in, out := x.pair(s, d, f)
			c, server := client(d, in, out)
			x.Must(transfer(c, server, x.transferBytes(), 1))
		}),
		forBoth("integrity/to-client", func(x *T, s *Env, d Direction, f Family) {
			in, out := x.pair(s, d, f)
			c, server := client(d, in, out)
			x.Must(transfer(server, c, x.transferBytes()/4, 2))
		}),
		forPairs("integrity/both-ways-at-once", func(x *T, in, out *net.TCPConn) {
			bytes := x.transferBytes() / 4
			x.Both(func() error { return transfer(in, out, bytes, 3) }, func() error { return transfer(out, in, bytes, 4) })
		}),
	)
}

// progress counts the bytes written through it.
type progress struct {
	io.Writer
	moved atomic.Int64
}

func (p *progress) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	p.moved.Add(int64(n))
	return n, err
}

// stalledFor is how long a counter must not change to count as stalled.
const stalledFor = 250 * time.Millisecond

// awaitStalled waits until p has stalled and returns its count.
func (x *T) awaitStalled(p *progress) int64 {
	last, since := p.moved.Load(), time.Now()
	x.Await(func() error {
		if now := p.moved.Load(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < stalledFor {
			return errors.New("data keeps moving although the receiver does not read")
		}
		return nil
	})
	return last
}

// awaitMoved waits until more than the given number of bytes have moved.
func (x *T) awaitMoved(p *progress, bytes int64) {
	x.Await(func() error {
		if got := p.moved.Load(); got <= bytes {
			return fmt.Errorf("only %d bytes moved: %w", got, os.ErrDeadlineExceeded)
		}
		return nil
	})
}
