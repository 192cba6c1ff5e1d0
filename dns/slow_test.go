package dns

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"cleat/internal/ledger"

	"golang.org/x/net/dns/dnsmessage"
)

// A client that reads its answer too slowly, or not at all, loses its connection.
func TestSlowReadersOverTCP(t *testing.T) {
	for _, every := range []time.Duration{time.Hour, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var s fakes
			s.set("192.0.2.1", long)
			account := ledger.New(ledger.Cost{Descriptors: 9, Bytes: 1 << 20, Goroutines: 99})
			f := newForwarder(t, Config{Ledger: account}, &s)
			conn := f.Stream()
			defer conn.Close()
			conn.Write(pipelined(t, 0, maxPipelined))
			go func() {
				for {
					if _, err := conn.Read(make([]byte, 1000)); err != nil {
						return
					}
					select {
					case <-t.Context().Done():
						return
					case <-time.After(every):
					}
				}
			}()
			time.Sleep(streamIdle + time.Millisecond)
			synctest.Wait()
			f.mu.Lock()
			n := len(f.tcp)
			f.mu.Unlock()
			if n != 0 {
				t.Errorf("a reader that takes 1000 bytes each %v still has its connection after %v", every, streamIdle)
			}
			if u := account.Usage(); u.Used != (ledger.Cost{}) {
				t.Errorf("%+v is still charged", u.Used)
			}
		})
	}
}

// A server that sends a long answer byte by byte delays a query no longer than a silent
// one.
func TestSlowServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := ledger.New(ledger.Cost{Descriptors: 9, Bytes: 1 << 20, Goroutines: 99})
		f := newForwarder(t, Config{Ledger: account, Dial: dripping}, nil)
		start := time.Now()
		m := unpack(t, exchangeTCP(t, f, ask(t, 7, "example.com", dnsmessage.TypeTXT)))
		if took := time.Since(start); m.RCode != dnsmessage.RCodeServerFailure || took > maxDeadline {
			t.Errorf("%v after %v", m.RCode, took)
		}
		time.Sleep(streamIdle) // for the connection, and the server
		synctest.Wait()
		if u := account.Usage(); u.Used != (ledger.Cost{}) {
			t.Errorf("%+v is still charged", u.Used)
		}
	})
}

// dripping connects to a server that sends an answer of 64 KiB at one byte every 3 s.
func dripping(_ context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		q := make([]byte, maxMessage)
		n, err := theirs.Read(q)
		if err != nil {
			return
		}
		if network == "udp" {
			theirs.Write(long("udp", q[:n]))
			return
		}
		for _, b := range []byte{0xff, 0xff, 0, 0, 0, 0} {
			if _, err := theirs.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(3 * time.Second)
		}
	}()
	return ours, nil
}
