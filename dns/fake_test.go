package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// A fake is a server behind Config.Dial. It receives each query and sends what it
// returns, or nothing for nil. It may block.
type fake func(network string, q []byte) []byte

// servers provides Config.Dial for fakes by address; asked counts queries.
type fakes struct {
	wg    sync.WaitGroup
	mu    sync.Mutex
	at    map[string]fake // "192.0.2.1", at port 53
	asked map[string]int
}

var errRefused = &net.OpError{Op: "read", Err: unix.ECONNREFUSED}

func (s *fakes) count(addr string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[addr]
}

func (s *fakes) set(addr string, f fake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at, s.asked = map[string]fake{}, map[string]int{}
	}
	s.at[addr] = f
}

// dial implements Config.Dial. A missing server refuses.
func (s *fakes) dial(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
	addr := server.Addr().String()
	s.mu.Lock()
	f := s.at[addr]
	if s.asked == nil {
		s.asked = map[string]int{}
	}
	s.asked[addr]++
	s.mu.Unlock()
	if f == nil {
		return nil, errRefused
	}
	ours, theirs := net.Pipe()
	s.wg.Go(func() {
		defer theirs.Close()
		buf := make([]byte, maxMessage)
		n, err := theirs.Read(buf)
		if err != nil {
			return
		}
		q := buf[:n]
		if network == "tcp" {
			q = q[2:]
		}
		answer := f(network, q)
		if answer == nil {
			io.Copy(io.Discard, theirs) // blocks until the client gives up
			return
		}
		if network == "tcp" {
			answer = append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)
		}
		theirs.Write(answer)
		io.Copy(io.Discard, theirs)
	})
	return ours, nil
}

// newForwarder returns a Forwarder with the servers 192.0.2.1, 192.0.2.2 ….
func newForwarder(t testing.TB, cfg Config, s *fakes) *Forwarder {
	t.Helper()
	if s != nil {
		cfg.Dial = s.dial
	}
	if cfg.Servers == nil && cfg.ResolvConf == nil {
		cfg.Servers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		if s != nil {
			s.wg.Wait() // time for late answers
		}
	})
	return f
}

func two() []netip.AddrPort {
	return []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:53")}
}

// ask returns a query.
func ask(t testing.TB, id uint16, name string, typ dnsmessage.Type) []byte {
	t.Helper()
	return pack(t, dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}},
	})
}

func pack(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func unpack(t testing.TB, b []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		t.Fatalf("unpack %x: %v", b, err)
	}
	return m
}

// answerTo returns an answer to q with records like "example.com A 192.0.2.1" or
// "example.com CNAME www.example.com", with a TTL of 300.
func answerTo(t testing.TB, q []byte, code dnsmessage.RCode, records ...string) []byte {
	t.Helper()
	m := unpack(t, q)
	m.Header.Response, m.Header.RecursionAvailable, m.Header.RCode = true, true, code
	for _, r := range records {
		m.Answers = append(m.Answers, record(t, r))
	}
	return pack(t, m)
}

func record(t testing.TB, s string) dnsmessage.Resource {
	t.Helper()
	w := strings.Fields(s)
	r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(w[0] + "."), Class: dnsmessage.ClassINET, TTL: 300}}
	switch w[1] {
	case "A":
		r.Body = &dnsmessage.AResource{A: netip.MustParseAddr(w[2]).As4()}
	case "AAAA":
		r.Body = &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(w[2]).As16()}
	case "CNAME":
		r.Body = &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(w[2] + ".")}
	case "TXT":
		r.Body = &dnsmessage.TXTResource{TXT: []string{w[2]}}
	default:
		t.Fatalf("record %q", s)
	}
	return r
}

// says returns a fake that answers each query with records.
func says(t testing.TB, records ...string) fake {
	return func(_ string, q []byte) []byte { return answerTo(t, q, dnsmessage.RCodeSuccess, records...) }
}

// fails returns a fake that answers with a code.
func fails(t testing.TB, code dnsmessage.RCode) fake {
	return func(_ string, q []byte) []byte { return answerTo(t, q, code) }
}

func silent(string, []byte) []byte { return nil }

// late delays a fake's answers.
func late(d time.Duration, f fake) fake {
	return func(network string, q []byte) []byte {
		time.Sleep(d)
		return f(network, q)
	}
}

// exchangeUDP sends a query and reads one answer.
func exchangeUDP(t testing.TB, f *Forwarder, q []byte) []byte {
	t.Helper()
	c := f.Packets()
	if c == nil {
		t.Fatal("no conversation")
	}
	defer c.Close()
	if _, err := c.Write(q); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, maxMessage)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// exchangeTCP sends a query on a new connection.
func exchangeTCP(t testing.TB, f *Forwarder, q []byte) []byte {
	t.Helper()
	c := f.Stream()
	if c == nil {
		t.Fatal("no conversation")
	}
	defer c.Close()
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)); err != nil {
		t.Fatal(err)
	}
	answer, err := ReadMessage(c, maxMessage)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// text returns Config.ResolvConf for a constant text.
func text(s *string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader([]byte(*s))), nil }
}
