package traffic_test

import (
	"context"
	"errors"
	"math"
	"net"
	"syscall"
	"testing"

	"cleat/traffic"
)

func TestHelloFirstByteTime(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	before := traffic.MonotonicTime()
	at, err := traffic.Hello(context.Background(), address)
	if err != nil {
		t.Fatal(err)
	}
	after := traffic.MonotonicTime()
	if at < before || at > after {
		t.Errorf("the first byte came at %s, not between %s and %s", at, before, after)
	}
}

func TestHelloWhereNobodyAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	go func() { // accepts the connection and sends nothing
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}()
	if _, err := traffic.Hello(context.Background(), address); err == nil {
		t.Error("a server that closes at once gave a first byte")
	}
	l.Close()
	if _, err := traffic.Hello(context.Background(), address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	var bad *traffic.ConfigError
	if _, err := traffic.Hello(context.Background(), "[::1"); !errors.As(err, &bad) {
		t.Errorf("an address that is none: %v", err)
	}
}

func TestFairness(t *testing.T) {
	for _, c := range []struct {
		name   string
		shares []uint64
		want   float64
	}{
		{"none", nil, 0},
		{"nothing at all", []uint64{0, 0}, 0},
		{"equal", []uint64{7, 7, 7, 7}, 1},
		{"one has it all", []uint64{0, 9, 0, 0}, 0.25},
		{"half", []uint64{2, 1}, 0.9},
		{"beyond 2⁶³ together", []uint64{1 << 63, 1 << 63, 1 << 63}, 1},
	} {
		if got := traffic.Fairness(c.shares); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: %g, want %g", c.name, got, c.want)
		}
	}
}

func TestStreamsAreCountedOneByOne(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	for _, c := range []struct {
		name    string
		streams int
		reverse bool
	}{{"one", 1, false}, {"four", 4, false}, {"four, reversed", 4, true}, {"on shared threads, reversed", 40, true}, {"as many as there may be", traffic.MaxStreams, false}} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, traffic.Config{Work: traffic.TCP, Address: address, Streams: c.streams, Reverse: c.reverse})
			if c.streams == 1 {
				if r.StreamBytes != nil || r.Fairness != 0 {
					t.Fatalf("one stream has no shares: %v, %g", r.StreamBytes, r.Fairness)
				}
				return
			}
			var sum uint64
			for _, b := range r.StreamBytes {
				sum += b
			}
			if len(r.StreamBytes) != c.streams || sum != r.BytesReceived {
				t.Errorf("%d streams received %d bytes of %d", len(r.StreamBytes), sum, r.BytesReceived)
			}
			if want := traffic.Fairness(r.StreamBytes); r.Fairness != want || want <= 0 || want > 1 {
				t.Errorf("fairness %g, want %g", r.Fairness, want)
			}
		})
	}
}
