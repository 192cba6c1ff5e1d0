package dns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cleat/internal/ledger"

	"golang.org/x/net/dns/dnsmessage"
)

func TestAnswersAreUnchanged(t *testing.T) {
	q := ask(t, 0x1234, "Example.com", dnsmessage.TypeA)
	full := unpack(t, answerTo(t, q, dnsmessage.RCodeSuccess, "example.com CNAME www.example.com", "www.example.com A 192.0.2.1"))
	full.Header.AuthenticData, full.Header.Authoritative = true, true
	full.Additionals = []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("x."), Class: 250},
		Body:   &dnsmessage.UnknownResource{Type: 4711, Data: []byte{1, 2, 3}},
	}}
	want := pack(t, full)
	for _, c := range []struct {
		name     string
		exchange func(testing.TB, *Forwarder, []byte) []byte
	}{{"UDP", exchangeUDP}, {"TCP", exchangeTCP}} {
		t.Run(c.name, func(t *testing.T) {
			var s fakes
			var sent []byte
			s.set("192.0.2.1", func(_ string, q []byte) []byte {
				sent = bytes.Clone(q)
				out := bytes.Clone(want)
				copy(out, q[:2])
				return out
			})
			f := newForwarder(t, Config{}, &s)
			if got := c.exchange(t, f, q); !bytes.Equal(got, want) {
				t.Errorf("answer\n%x, want\n%x", got, want)
			}
			if !bytes.Equal(sent[2:], q[2:]) {
				t.Errorf("the server got\n%x, want\n%x", sent, q)
			}
		})
	}
}

func TestIDsDifferFromTheGuests(t *testing.T) {
	var s fakes
	var mu sync.Mutex
	ids := map[uint16]bool{}
	s.set("192.0.2.1", func(_ string, q []byte) []byte {
		mu.Lock()
		ids[binary.BigEndian.Uint16(q)] = true
		mu.Unlock()
		return answerTo(t, q, dnsmessage.RCodeSuccess)
	})
	f := newForwarder(t, Config{}, &s)
	for range 16 {
		if m := unpack(t, exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeA))); m.ID != 7 {
			t.Errorf("id %d in the answer", m.ID)
		}
	}
	if len(ids) < 10 {
		t.Errorf("only %d ids toward the server", len(ids))
	}
}

func TestInvalidQueries(t *testing.T) {
	good := ask(t, 7, "example.com", dnsmessage.TypeA)
	change := func(f func(*dnsmessage.Message)) []byte {
		m := unpack(t, good)
		f(&m)
		return pack(t, m)
	}
	for _, c := range []struct {
		name string
		q    []byte
		want string // code, or "silence"
	}{
		{"nothing", []byte{}, "silence"},
		{"cut header", good[:11], "silence"},
		{"an answer", change(func(m *dnsmessage.Message) { m.Header.Response = true }), "silence"},
		{"an answer with addresses", answerTo(t, good, dnsmessage.RCodeSuccess, "example.com A 192.0.2.1"), "silence"},
		{"another kind", change(func(m *dnsmessage.Message) { m.Header.OpCode = 5 }), "RCodeNotImplemented"},
		{"no question", change(func(m *dnsmessage.Message) { m.Questions = nil }), "RCodeFormatError"},
		{"two questions", change(func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }), "RCodeFormatError"},
		{"cut question", good[:len(good)-1], "RCodeFormatError"},
		{"name that points to itself", slices.Concat(good[:12], []byte{0xc0, 12, 0, 1, 0, 1}), "RCodeFormatError"},
		{"cut record", change(func(m *dnsmessage.Message) {
			m.Additionals = []dnsmessage.Resource{record(t, "example.com TXT x")}
		})[:40], "RCodeFormatError"},
		{"very long", change(func(m *dnsmessage.Message) {
			for range 25 {
				m.Additionals = append(m.Additionals, record(t, "example.com TXT "+strings.Repeat("x", 250)))
			}
		}), "RCodeFormatError"},
		{"zone transfer", ask(t, 7, "example.com", typeAXFR), "RCodeRefused"},
		{"incremental zone transfer", ask(t, 7, "example.com", typeIXFR), "RCodeRefused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s fakes
				s.set("192.0.2.1", says(t))
				f := newForwarder(t, Config{}, &s)
				conn := f.Packets()
				defer conn.Close()
				if _, err := conn.Write(c.q); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 600)
				n, err := conn.Read(buf)
				if c.want == "silence" {
					if err != io.EOF {
						t.Errorf("read %x, %v", buf[:n], err)
					}
				} else if err != nil {
					t.Error(err)
				} else if m := unpack(t, buf[:n]); m.RCode.String() != c.want || m.ID != 7 || !m.Response {
					t.Errorf("answer %v, want %s", m.GoString(), c.want)
				}
				if n := s.count("192.0.2.1"); n != 0 {
					t.Errorf("the server was asked %d times", n)
				}
				if st := f.Stats(); st.Malformed != 1 || st.Questions != 0 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

func TestSizesOverUDP(t *testing.T) {
	long := make([]string, 100) // about 1.6 KB
	for i := range long {
		long[i] = fmt.Sprintf("example.com A 198.51.100.%d", i)
	}
	for _, c := range []struct {
		name  string
		edns  int // 0: none
		short bool
		cut   bool
	}{
		{"short, no EDNS", 0, true, false},
		{"long, no EDNS", 0, false, true},
		{"long, EDNS for less", 1232, false, true},
		{"long, EDNS for more", 4096, false, false},
		{"EDNS for less than anybody must take", 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s fakes
			records := long
			if c.short {
				records = long[:20]
			}
			s.set("192.0.2.1", says(t, records...))
			var learned int
			f := newForwarder(t, Config{Learn: func(_ string, a []netip.Addr, _ time.Duration) { learned = len(a) }}, &s)
			m := unpack(t, ask(t, 7, "example.com", dnsmessage.TypeA))
			if c.edns > 0 {
				var h dnsmessage.ResourceHeader
				h.SetEDNS0(c.edns, 0, false)
				m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
			}
			q := pack(t, m)
			got := unpack(t, exchangeUDP(t, f, q))
			if got.Truncated != c.cut || (len(got.Answers) == 0) != c.cut || len(got.Questions) != 1 || got.ID != 7 {
				t.Errorf("truncated %v with %d records", got.Truncated, len(got.Answers))
			}
			if learned != len(records) {
				t.Errorf("%d addresses learned", learned)
			}
			if got := unpack(t, exchangeTCP(t, f, q)); got.Truncated || len(got.Answers) != len(records) {
				t.Errorf("over TCP: truncated %v with %d records", got.Truncated, len(got.Answers))
			}
		})
	}
}

func TestTruncatedAnswers(t *testing.T) {
	server := func(network string, q []byte) []byte {
		if network == "tcp" {
			return answerTo(t, q, dnsmessage.RCodeSuccess, "example.com A 192.0.2.1", "example.com A 192.0.2.2")
		}
		m := unpack(t, answerTo(t, q, dnsmessage.RCodeSuccess))
		m.Truncated = true
		return pack(t, m)
	}
	var s fakes
	s.set("192.0.2.1", server)
	f := newForwarder(t, Config{}, &s)
	q := ask(t, 7, "example.com", dnsmessage.TypeA)
	if m := unpack(t, exchangeUDP(t, f, q)); !m.Truncated {
		t.Error("UDP: not passed on as it came")
	}
	if m := unpack(t, exchangeTCP(t, f, q)); m.Truncated || len(m.Answers) != 2 {
		t.Errorf("TCP: %v", m.GoString())
	}
}

func TestUseVC(t *testing.T) {
	conf := "nameserver 192.0.2.1\noptions use-vc\n"
	var s fakes
	s.set("192.0.2.1", func(network string, q []byte) []byte {
		if network == "udp" {
			t.Error("asked over UDP")
		}
		return answerTo(t, q, dnsmessage.RCodeSuccess, "example.com A 192.0.2.1")
	})
	f := newForwarder(t, Config{ResolvConf: text(&conf)}, &s)
	if m := unpack(t, exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeA))); len(m.Answers) != 1 {
		t.Error(m.GoString())
	}
}

func TestTwoQueriesFromOneSocket(t *testing.T) {
	var s fakes
	s.set("192.0.2.1", func(_ string, q []byte) []byte {
		if unpack(t, q).Questions[0].Type == dnsmessage.TypeA {
			return answerTo(t, q, dnsmessage.RCodeSuccess, "example.com A 192.0.2.1")
		}
		return answerTo(t, q, dnsmessage.RCodeSuccess, "example.com AAAA 2001:db8::1")
	})
	f := newForwarder(t, Config{}, &s)
	c := f.Packets()
	defer c.Close()
	for range 20 {
		for i, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			if _, err := c.Write(ask(t, uint16(i), "example.com", typ)); err != nil {
				t.Fatal(err)
			}
		}
		got := map[uint16]dnsmessage.Type{}
		buf := make([]byte, 600)
		for range 2 {
			n, err := c.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			m := unpack(t, buf[:n])
			got[m.ID] = m.Answers[0].Header.Type
		}
		if got[0] != dnsmessage.TypeA || got[1] != dnsmessage.TypeAAAA {
			t.Fatalf("answers %v", got)
		}
	}
}

func TestSyntheticNames(t *testing.T) {
	names := map[string][]netip.Addr{"host.cleat.internal": {netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("fd00::2")}}
	for _, c := range []struct {
		name, ask string
		typ       dnsmessage.Type
		want      []string
	}{
		{"A", "host.cleat.internal", dnsmessage.TypeA, []string{"10.0.2.2"}},
		{"AAAA", "host.cleat.internal", dnsmessage.TypeAAAA, []string{"fd00::2"}},
		{"any", "host.cleat.internal", dnsmessage.TypeALL, []string{"10.0.2.2", "fd00::2"}},
		{"upper case", "HOST.Cleat.Internal", dnsmessage.TypeA, []string{"10.0.2.2"}},
		{"another type", "host.cleat.internal", dnsmessage.TypeMX, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s fakes
			var learned string
			f := newForwarder(t, Config{Names: names, Learn: func(name string, _ []netip.Addr, _ time.Duration) { learned = name }}, &s)
			m := unpack(t, exchangeUDP(t, f, ask(t, 7, c.ask, c.typ)))
			var got []string
			for _, r := range m.Answers {
				switch b := r.Body.(type) {
				case *dnsmessage.AResource:
					got = append(got, netip.AddrFrom4(b.A).String())
				case *dnsmessage.AAAAResource:
					got = append(got, netip.AddrFrom16(b.AAAA).String())
				}
				if r.Header.Name.String() != c.ask+"." {
					t.Errorf("owner %s", r.Header.Name)
				}
			}
			if !slices.Equal(got, c.want) || m.RCode != 0 || m.ID != 7 {
				t.Errorf("%v, want %v", got, c.want)
			}
			if learned != "host.cleat.internal" {
				t.Errorf("learned %q", learned)
			}
			if s.count("192.0.2.1") != 0 {
				t.Error("a server was asked")
			}
		})
	}
}

func TestMayAsk(t *testing.T) {
	var s fakes
	s.set("192.0.2.1", says(t))
	f := newForwarder(t, Config{MayAsk: func(name string) bool { return name == "example.com" }}, &s)
	if m := unpack(t, exchangeUDP(t, f, ask(t, 7, "secret.evil.test", dnsmessage.TypeTXT))); m.RCode != dnsmessage.RCodeNameError || len(m.Questions) != 1 {
		t.Error(m.GoString())
	}
	if n := s.count("192.0.2.1"); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
	if m := unpack(t, exchangeUDP(t, f, ask(t, 7, "EXAMPLE.com", dnsmessage.TypeTXT))); m.RCode != dnsmessage.RCodeSuccess {
		t.Error(m.GoString())
	}
	if st := f.Stats(); st.Denied != 1 || st.Answers != 1 {
		t.Errorf("%+v", st)
	}
}

func TestLearnBeforeTheGuestSeesIt(t *testing.T) {
	var s fakes
	s.set("192.0.2.1", says(t, "example.com A 192.0.2.1"))
	learning, release := make(chan struct{}), make(chan struct{})
	f := newForwarder(t, Config{Learn: func(name string, a []netip.Addr, ttl time.Duration) {
		if name != "example.com" || len(a) != 1 || ttl != 300*time.Second {
			t.Errorf("learned %s %v %v", name, a, ttl)
		}
		close(learning)
		<-release
	}}, &s)
	c := f.Packets()
	defer c.Close()
	c.Write(ask(t, 7, "example.com", dnsmessage.TypeA))
	<-learning
	talk := c.(*packets)
	talk.mu.Lock()
	if len(talk.answers) > 0 {
		t.Error("the answer can be read while it is being learned")
	}
	talk.mu.Unlock()
	close(release)
	if _, err := c.Read(make([]byte, 600)); err != nil {
		t.Error(err)
	}
}

func TestNewChecks(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		name string
		cfg  Config
		want string // "": fine
	}{
		{"zero", Config{}, ""},
		{"server without port", Config{Servers: []netip.AddrPort{netip.AddrPortFrom(a, 0)}}, "address and a port"},
		{"no server", Config{Servers: []netip.AddrPort{{}}}, "address and a port"},
		{"name in upper case", Config{Names: map[string][]netip.Addr{"Host.internal": {a}}}, "lower case"},
		{"name with a final dot", Config{Names: map[string][]netip.Addr{"host.internal.": {a}}}, "final dot"},
		{"name too long", Config{Names: map[string][]netip.Addr{strings.Repeat("a.", 130): {a}}}, "lower case"},
		{"address with zone", Config{Names: map[string][]netip.Addr{"h": {netip.MustParseAddr("fe80::1%x")}}}, "without zone"},
		{"queries", Config{Queries: -1}, "1 or more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.cfg)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// Without an answer about IPv6 addresses, it is unknown whether the network has a NAT64.
func TestLookupOfNAT64(t *testing.T) {
	for _, c := range []struct {
		name  string
		aaaa  fake
		want  string
		known bool // an error code from a server counts as an answer
	}{
		{"announced", says(t, "ipv4only.arpa AAAA 64:ff9b::c000:aa"), "[64:ff9b::c000:aa] <nil>", true},
		{"none", says(t), "[] <nil>", true},
		{"refused", fails(t, dnsmessage.RCodeRefused), "[] server answered RCodeRefused", true},
		{"silent", silent, "[] ask [192.0.2.1:53]: context deadline exceeded", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s fakes
				s.set("192.0.2.1", func(network string, q []byte) []byte {
					if unpack(t, q).Questions[0].Type == dnsmessage.TypeAAAA {
						return c.aaaa(network, q)
					}
					return answerTo(t, q, dnsmessage.RCodeSuccess, "ipv4only.arpa A 192.0.0.170")
				})
				f := newForwarder(t, Config{}, &s)
				addrs, _, err := f.Lookup(t.Context(), "ipv4only.arpa")
				if got := fmt.Sprint(addrs, " ", err); got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
				var answered interface{ Answered() bool }
				if known := err == nil || errors.As(err, &answered) && answered.Answered(); known != c.known {
					t.Errorf("known: %t", known)
				}
			})
		})
	}
}

// Submit calls done once with the answer and what it says, also for a message that is no
// query, and refunds what the query has cost.
func TestSubmit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		msg    []byte
		stream bool
		want   string // code, or "" for no answer
		learns Learned
	}{
		{"query", ask(t, 7, "WWW.example.com", dnsmessage.TypeA), false, "RCodeSuccess",
			Learned{"www.example.com", []netip.Addr{netip.MustParseAddr("192.0.2.9")}, 300 * time.Second}},
		{"over TCP", ask(t, 7, "www.example.com", dnsmessage.TypeA), true, "RCodeSuccess",
			Learned{"www.example.com", []netip.Addr{netip.MustParseAddr("192.0.2.9")}, 300 * time.Second}},
		{"not a query", []byte("nonsense"), false, "", Learned{}},
		{"zone transfer", ask(t, 7, "example.com", dnsmessage.TypeAXFR), true, "RCodeRefused", Learned{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s fakes
			s.set("192.0.2.1", says(t, "www.example.com A 192.0.2.9"))
			l := ledger.New(ledger.Cost{Descriptors: 10, Bytes: 1 << 20, Goroutines: 10})
			f := newForwarder(t, Config{Ledger: l}, &s)
			done := make(chan struct{})
			ok := f.Submit(tt.msg, tt.stream, func(frame []byte, l Learned) {
				defer close(done)
				got := ""
				if frame != nil {
					got = unpack(t, frame[LengthBytes:]).RCode.String()
				}
				if got != tt.want || len(frame) > 0 && int(binary.BigEndian.Uint16(frame)) != len(frame)-LengthBytes {
					t.Errorf("answer %x, want %s", frame, tt.want)
				}
				if l.Name != tt.learns.Name || !slices.Equal(l.Addrs, tt.learns.Addrs) || l.TTL != tt.learns.TTL {
					t.Errorf("learned %+v, want %+v", l, tt.learns)
				}
			})
			if !ok {
				t.Fatal("the limits don't permit one query")
			}
			<-done
			for l.Usage().Used != (ledger.Cost{}) {
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// A server that would cause a loop is not asked, even if it is the only one.
func TestSkip(t *testing.T) {
	var s fakes
	for _, addr := range []string{"192.0.2.1", "192.0.2.2"} {
		s.set(addr, says(t, "example.com A 192.0.2.9"))
	}
	var all atomic.Bool
	skip := func(a netip.AddrPort) bool { return all.Load() || a.Addr().String() == "192.0.2.1" }
	f := newForwarder(t, Config{Servers: two(), Skip: skip}, &s)
	q := ask(t, 7, "example.com", dnsmessage.TypeA)
	for range 3 {
		if m := unpack(t, exchangeUDP(t, f, q)); len(m.Answers) != 1 {
			t.Errorf("answer %v", m)
		}
	}
	all.Store(true)
	if m := unpack(t, exchangeUDP(t, f, q)); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("answer %v", m)
	}
	if _, _, err := f.Lookup(t.Context(), "example.com"); !errors.Is(err, errNoServer) {
		t.Errorf("look-up: %v", err)
	}
	if one, two := s.count("192.0.2.1"), s.count("192.0.2.2"); one != 0 || two != 3 {
		t.Errorf("%d and %d queries", one, two)
	}
}
