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
	"sync/atomic"
	"time"
)

// maxChunk bounds the sizes of single writes, which are random.
const maxChunk = 256 << 10

// source writes that many bytes, which the seed determines, in pieces of random
// sizes, and returns their SHA-256.
func source(w io.Writer, bytes int64, seed uint64) (string, error) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	data := rand.NewChaCha8(key)
	sizes := rand.New(rand.NewPCG(seed, 0))
	hash := sha256.New()
	buf := make([]byte, maxChunk)
	for left := bytes; left > 0; {
		// Small ones too: a uniform choice of the exponent.
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

// sink reads to the end and returns count and SHA-256.
func sink(r io.Reader) (int64, string, error) {
	hash := sha256.New()
	n, err := io.CopyBuffer(hash, onlyReader{r}, make([]byte, maxChunk))
	if err != nil {
		err = fmt.Errorf("receive after %d bytes: %w", n, err)
	}
	return n, hex.EncodeToString(hash.Sum(nil)), err
}

// onlyReader hides WriteTo, which would take buffers of its own.
type onlyReader struct{ io.Reader }

// transfer moves bytes from a to b, closes that direction, and compares.
func transfer(a, b *net.TCPConn, bytes int64, seed uint64) error {
	sent := make(chan string, 1)
	failed := make(chan error, 1)
	go func() {
		sum, err := source(a, bytes, seed)
		if err == nil {
			err = a.CloseWrite()
		}
		sent <- sum
		failed <- err
	}()
	n, got, err := sink(b)
	if err != nil {
		a.SetDeadline(time.Unix(1, 0)) // nobody will read the rest
	}
	want := <-sent
	if err := errors.Join(<-failed, err); err != nil {
		return err
	}
	if n != bytes || got != want {
		return fmt.Errorf("received %d bytes with SHA-256 %.8s…, sent were %d with %.8s…", n, got, bytes, want)
	}
	return nil
}

// transferBytes is how much an integrity case moves.
func (x *T) transferBytes() int64 { return scaled[int64](x.Settings, 16<<20, 64<<20, 1<<30) }

func streamCases() []Case {
	cases := both(func(d Direction, f Family) Case {
		return Case{Name: "integrity/to-server", Check: func(x *T, s *Env) {
			in, out := x.pair(s, d, f)
			client, server := in, out
			if d == In {
				client, server = out, in
			}
			x.Must(transfer(client, server, x.transferBytes(), 1))
		}}
	})
	cases = append(cases, both(func(d Direction, f Family) Case {
		return Case{Name: "integrity/to-client", Check: func(x *T, s *Env) {
			in, out := x.pair(s, d, f)
			client, server := in, out
			if d == In {
				client, server = out, in
			}
			x.Must(transfer(server, client, x.transferBytes()/4, 2))
		}}
	})...)
	return append(cases, both(func(d Direction, f Family) Case {
		return Case{Name: "integrity/both-ways-at-once", Check: func(x *T, s *Env) {
			in, out := x.pair(s, d, f)
			bytes := x.transferBytes() / 4
			x.Both(func() error { return transfer(in, out, bytes, 3) }, func() error { return transfer(out, in, bytes, 4) })
		}}
	})...)
}

// progress counts what passes through it.
type progress struct {
	io.Writer
	moved atomic.Int64
}

func (p *progress) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	p.moved.Add(int64(n))
	return n, err
}

// still is how long a counter must not move to be said to stand.
const stalledFor = 250 * time.Millisecond

// awaitStill waits until p stands, and is where.
func (x *T) awaitStalled(p *progress) int64 {
	last, since := p.moved.Load(), time.Now()
	x.Await(func() error {
		if now := p.moved.Load(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < stalledFor {
			return errors.New("data keeps moving though nobody reads")
		}
		return nil
	})
	return last
}

// awaitMoved waits until more than so many bytes have moved.
func (x *T) awaitMoved(p *progress, bytes int64) {
	x.Await(func() error {
		if got := p.moved.Load(); got <= bytes {
			return fmt.Errorf("only %d bytes moved: %w", got, os.ErrDeadlineExceeded)
		}
		return nil
	})
}
