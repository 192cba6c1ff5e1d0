package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/internal/dnsname"

	"golang.org/x/net/dns/dnsmessage"
)

// Every kind of message that is not the answer, or that says more than was asked.
func TestHostileAnswers(t *testing.T) {
	const id = 0x4242
	asked := ask(t, id, "www.example.com", dnsmessage.TypeA)
	good := answerTo(t, asked, dnsmessage.RCodeSuccess, "www.example.com A 192.0.2.1")
	change := func(f func(*dnsmessage.Message)) []byte {
		m := unpack(t, good)
		f(&m)
		return pack(t, m)
	}
	with := func(records ...string) []byte { return answerTo(t, asked, dnsmessage.RCodeSuccess, records...) }
	other := func(name string, typ dnsmessage.Type, class dnsmessage.Class) []byte {
		return change(func(m *dnsmessage.Message) {
			m.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: class}}
		})
	}
	chain := func(n int) (records []string) {
		records = append(records, "www.example.com CNAME c0.example")
		for i := range n {
			records = append(records, "c"+string(rune('a'+i))+".example CNAME c"+string(rune('b'+i))+".example")
		}
		records[0] = "www.example.com CNAME ca.example"
		return append(records, "c"+string(rune('a'+n))+".example A 192.0.2.1")
	}
	// A record whose owner is a single label that contains a dot: "example.com" as eleven
	// bytes.
	dotted := slices.Concat(good[:len(good)-16], append([]byte{11}, "example.com\x00"...), good[len(good)-14:])

	for _, c := range []struct {
		name string
		msg  []byte
		want string // addresses, or an error
	}{
		{"the answer", good, "192.0.2.1"},
		{"the answer, other case", other("WWW.example.COM.", dnsmessage.TypeA, dnsmessage.ClassINET), "192.0.2.1"},
		{"the answer by CNAME", with("www.example.com CNAME a.example", "a.example CNAME b.example", "b.example A 192.0.2.1"), "192.0.2.1"},
		{"the answer by CNAME, backwards", with("b.example A 192.0.2.1", "a.example CNAME b.example", "www.example.com CNAME a.example"), "192.0.2.1"},
		{"several addresses", with("www.example.com A 192.0.2.1", "www.example.com A 192.0.2.2"), "192.0.2.1 192.0.2.2"},

		{"id", func() []byte { b := slices.Clone(good); b[0]++; return b }(), "forged"},
		{"a question come back", asked, "forged"},
		{"opcode", change(func(m *dnsmessage.Message) { m.OpCode = 4 }), "forged"},
		{"another name", other("example.com.", dnsmessage.TypeA, dnsmessage.ClassINET), "forged"},
		{"a name that goes on", other("www.example.com.evil.test.", dnsmessage.TypeA, dnsmessage.ClassINET), "forged"},
		{"another type", other("www.example.com.", dnsmessage.TypeAAAA, dnsmessage.ClassINET), "forged"},
		{"another class", other("www.example.com.", dnsmessage.TypeA, dnsmessage.ClassCHAOS), "forged"},
		{"no question", change(func(m *dnsmessage.Message) { m.Questions = nil }), "forged"},
		{"no question, and no such name", change(func(m *dnsmessage.Message) { m.Questions, m.RCode = nil, dnsmessage.RCodeNameError }), "forged"},
		{"no question, and an excuse", change(func(m *dnsmessage.Message) { m.Questions, m.RCode = nil, dnsmessage.RCodeFormatError }), ""},
		{"two questions", change(func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }), "forged"},
		{"cut header", good[:11], "forged"},
		{"cut question", good[:20], "forged"},
		{"cut record", good[:len(good)-1], "malformed"},
		{"more records than there are", func() []byte { b := slices.Clone(good); b[7]++; return b }(), "malformed"},
		{"owner points to itself", slices.Concat(good[:len(good)-16], []byte{0xc0, byte(len(good) - 16)}, good[len(good)-14:]), "malformed"},
		{"owner points forward", slices.Concat(good[:len(good)-16], []byte{0xc0, byte(len(good) - 2)}, good[len(good)-14:]), "malformed"},
		{"a dot within a label", dotted, "malformed"},

		{"another owner", with("example.com A 192.0.2.1"), ""},
		{"another owner beside", with("www.example.com A 192.0.2.1", "bank.example A 192.0.2.9"), "192.0.2.1"},
		{"the parent beside", with("www.example.com A 192.0.2.1", "example.com A 192.0.2.9"), "192.0.2.1"},
		{"a CNAME from another name", with("www.example.com A 192.0.2.1", "bank.example CNAME x.example", "x.example A 192.0.2.9"), "192.0.2.1"},
		{"a CNAME toward the question", with("www.example.com A 192.0.2.1", "bank.example CNAME www.example.com"), "192.0.2.1"},
		{"a second CNAME of the question", with("www.example.com CNAME a.example", "www.example.com CNAME b.example", "a.example A 192.0.2.1", "b.example A 192.0.2.9"), "192.0.2.1"},
		{"CNAMEs in a circle", with("www.example.com CNAME a.example", "a.example CNAME www.example.com", "b.example A 192.0.2.9"), ""},
		{"a CNAME to itself", with("www.example.com CNAME www.example.com"), ""},
		{"a chain as long as any", with(chain(14)...), "192.0.2.1"},
		{"a longer chain", with(chain(15)...), ""},
		{"a gap in the chain", with("www.example.com CNAME a.example", "b.example A 192.0.2.9"), ""},
		{"an address in the additional section", change(func(m *dnsmessage.Message) {
			m.Answers, m.Additionals = nil, m.Answers
		}), ""},
		{"an address in the authority section", change(func(m *dnsmessage.Message) {
			m.Answers, m.Authorities = nil, m.Answers
		}), ""},
		{"an address of another class", change(func(m *dnsmessage.Message) { m.Answers[0].Header.Class = dnsmessage.ClassCHAOS }), ""},
		{"addresses of a name that does not exist", answerTo(t, asked, dnsmessage.RCodeNameError, "www.example.com A 192.0.2.1"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, err := parseQuestion(asked)
			if err != nil {
				t.Fatal(err)
			}
			a, err := parseAnswer(c.msg, &query{id, &q})
			var words []string
			for _, addr := range a.addrs {
				words = append(words, addr.String())
			}
			got := strings.Join(words, " ")
			switch {
			case errors.Is(err, errForged):
				got = "forged"
			case errors.Is(err, errMalformed):
				got = "malformed"
			case err != nil:
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	chaos := change(func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS })
	if a, err := parseAnswer(chaos, &query{id, &question{q: unpack(t, chaos).Questions[0], name: "www.example.com"}}); err != nil || len(a.addrs) > 0 {
		t.Errorf("a question of another class is credited %v, %v", a.addrs, err)
	}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeMX, dnsmessage.TypeTXT, dnsmessage.TypeCNAME, 65} {
		q, err := parseQuestion(ask(t, id, "www.example.com", typ))
		if err != nil {
			t.Fatal(err)
		}
		msg := answerTo(t, ask(t, id, "www.example.com", typ), dnsmessage.RCodeSuccess, "www.example.com A 192.0.2.1")
		if a, err := parseAnswer(msg, &query{id, &q}); err != nil || len(a.addrs) > 0 {
			t.Errorf("a question for %v is credited %v, %v", typ, a.addrs, err)
		}
	}
}

func TestTTL(t *testing.T) {
	const id = 1
	asked := ask(t, id, "www.example.com", dnsmessage.TypeA)
	for _, c := range []struct {
		name string
		ttls []uint32 // of a CNAME, an address, another
		want time.Duration
	}{
		{"all alike", []uint32{60, 60, 60}, time.Minute},
		{"the CNAME's is less", []uint32{5, 60, 60}, 5 * time.Second},
		{"an address' is less", []uint32{60, 60, 0}, 0},
		{"very long", []uint32{1<<32 - 1, 1<<32 - 1, 1<<32 - 1}, (1<<32 - 1) * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := unpack(t, answerTo(t, asked, dnsmessage.RCodeSuccess, "www.example.com CNAME a.example", "a.example A 192.0.2.1", "a.example A 192.0.2.2"))
			for i, ttl := range c.ttls {
				m.Answers[i].Header.TTL = ttl
			}
			q, _ := parseQuestion(asked)
			if a, err := parseAnswer(pack(t, m), &query{id, &q}); err != nil || a.ttl != c.want {
				t.Errorf("%v, %v, want %v", a.ttl, err, c.want)
			}
		})
	}
}

// listenBoth opens a loopback port for both UDP and TCP.
func listenBoth(t *testing.T) (*net.UDPConn, net.Listener) {
	t.Helper()
	const tries = 20
	for i := 1; ; i++ {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp4", c.LocalAddr().String())
		if err == nil {
			return c, l
		}
		c.Close()
		if i == tries {
			t.Fatal(err)
		}
	}
}

// A server on loopback whose reply to each query is scripted.
func listen(t *testing.T, udp func(c *net.UDPConn, from netip.AddrPort, q []byte), tcp func(q []byte) []byte) netip.AddrPort {
	t.Helper()
	c, l := listenBoth(t)
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	var wg sync.WaitGroup
	t.Cleanup(func() {
		c.Close()
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		buf := make([]byte, maxMessage)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			udp(c, from, slices.Clone(buf[:n]))
		}
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if q, err := ReadMessage(conn, maxMessage); err == nil && tcp != nil {
				a := tcp(q)
				conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
			}
			conn.Close()
		}
	})
	return at
}

func TestForgedAnswers(t *testing.T) {
	forged := func(q []byte) []byte {
		return answerTo(t, q, dnsmessage.RCodeSuccess, "example.com A 198.51.100.66")
	}
	good := func(q []byte) []byte {
		return answerTo(t, q, dnsmessage.RCodeSuccess, "example.com A 192.0.2.1")
	}
	wrongID := func(q []byte) []byte {
		a := forged(q)
		a[0] ^= 0xff
		return a
	}
	elsewhere := func(t *testing.T, ip string) *net.UDPConn {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for _, c := range []struct {
		name   string
		udp    func(t *testing.T) func(c *net.UDPConn, from netip.AddrPort, q []byte)
		forged uint64
	}{
		{"from another port, with the right id", func(t *testing.T) func(*net.UDPConn, netip.AddrPort, []byte) {
			other := elsewhere(t, "127.0.0.1")
			return func(c *net.UDPConn, from netip.AddrPort, q []byte) {
				other.WriteToUDPAddrPort(forged(q), from)
				c.WriteToUDPAddrPort(good(q), from)
			}
		}, 0},
		{"from another address, with the right id", func(t *testing.T) func(*net.UDPConn, netip.AddrPort, []byte) {
			other := elsewhere(t, "127.0.0.2")
			return func(c *net.UDPConn, from netip.AddrPort, q []byte) {
				other.WriteToUDPAddrPort(forged(q), from)
				c.WriteToUDPAddrPort(good(q), from)
			}
		}, 0},
		{"as the server, with the wrong id", func(t *testing.T) func(*net.UDPConn, netip.AddrPort, []byte) {
			return func(c *net.UDPConn, from netip.AddrPort, q []byte) {
				c.WriteToUDPAddrPort(wrongID(q), from)
				c.WriteToUDPAddrPort([]byte{}, from)
				c.WriteToUDPAddrPort(good(q), from)
			}
		}, 2},
		{"as the server, for another question", func(t *testing.T) func(*net.UDPConn, netip.AddrPort, []byte) {
			return func(c *net.UDPConn, from netip.AddrPort, q []byte) {
				other := ask(t, binary.BigEndian.Uint16(q), "evil.test", dnsmessage.TypeA)
				c.WriteToUDPAddrPort(answerTo(t, other, dnsmessage.RCodeSuccess, "example.com A 198.51.100.66"), from)
				c.WriteToUDPAddrPort(good(q), from)
			}
		}, 1},
		{"guessing on and on: TCP", func(t *testing.T) func(*net.UDPConn, netip.AddrPort, []byte) {
			return func(c *net.UDPConn, from netip.AddrPort, q []byte) {
				for range maxForged {
					c.WriteToUDPAddrPort(wrongID(q), from)
				}
				c.WriteToUDPAddrPort(forged(q), from) // the correct guess
			}
		}, maxForged},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := listen(t, c.udp(t), good)
			var learned []netip.Addr
			f := newForwarder(t, Config{Servers: []netip.AddrPort{at}, Learn: func(_ string, a []netip.Addr, _ time.Duration) { learned = a }}, nil)
			m := unpack(t, exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeA)))
			if len(m.Answers) != 1 || m.Answers[0].Body.(*dnsmessage.AResource).A != [4]byte{192, 0, 2, 1} {
				t.Errorf("the guest got %v", m.GoString())
			}
			if len(learned) != 1 || learned[0] != netip.MustParseAddr("192.0.2.1") {
				t.Errorf("learned %v", learned)
			}
			if n := f.Stats().Forged; n != c.forged {
				t.Errorf("%d forged, want %d", n, c.forged)
			}
		})
	}
}

func TestEachQueryHasItsOwnPort(t *testing.T) {
	var mu sync.Mutex
	ports := map[uint16]bool{}
	at := listen(t, func(c *net.UDPConn, from netip.AddrPort, q []byte) {
		mu.Lock()
		ports[from.Port()] = true
		mu.Unlock()
		c.WriteToUDPAddrPort(answerTo(t, q, dnsmessage.RCodeSuccess), from)
	}, nil)
	f := newForwarder(t, Config{Servers: []netip.AddrPort{at}}, nil)
	for range 16 {
		exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeA))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ports) < 10 {
		t.Errorf("16 questions from %d ports", len(ports))
	}
}

// Where nobody listens, the kernel reports it at once.
func TestNobodyListens(t *testing.T) {
	at := listen(t, func(c *net.UDPConn, from netip.AddrPort, q []byte) {
		c.WriteToUDPAddrPort(answerTo(t, q, dnsmessage.RCodeSuccess, "example.com A 192.0.2.1"), from)
	}, nil)
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	closed := c.LocalAddr().(*net.UDPAddr).AddrPort()
	c.Close()
	f := newForwarder(t, Config{Servers: []netip.AddrPort{closed, at}}, nil)
	if m := unpack(t, exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeA))); len(m.Answers) != 1 {
		t.Error(m.GoString())
	}
	if p := f.servers.plan(time.Now()); p.servers[0] != at {
		t.Errorf("%v is asked first", p.servers[0])
	}
}

func FuzzParseQuestion(f *testing.F) {
	f.Add(ask(f, 7, "example.com", dnsmessage.TypeA))
	f.Add([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0})
	f.Add(ask(f, 7, "example.com", typeAXFR))
	f.Fuzz(func(t *testing.T, msg []byte) {
		q, err := parseQuestion(msg)
		if errors.Is(err, errNoQuestion) {
			return
		}
		for _, b := range [][]byte{q.reply(dnsmessage.RCodeServerFailure), q.synthetic([]netip.Addr{netip.MustParseAddr("192.0.2.1")})} {
			m := unpack(t, b)
			if !m.Response || m.ID != binary.BigEndian.Uint16(msg) || len(b) > plainUDPBytes+32 {
				t.Fatalf("%x is answered by %x", msg, b)
			}
		}
		if err == nil && (q.udpBytes < plainUDPBytes || len(msg) > maxQuestion || dnsname.Fold(q.name) != q.name) {
			t.Fatalf("%x is read as %+v", msg, q)
		}
		if err == nil {
			checkQuery(t, msg, &q)
		}
	})
}

// checkQuery checks what a server receives of a guest's message: little more than the
// question.
func checkQuery(t *testing.T, msg []byte, q *question) {
	sent := query{9, q}
	out, err := sent.message(0)
	if err != nil {
		t.Fatalf("%x can't be asked: %v", msg, err)
	}
	m := unpack(t, out)
	if len(out) > plainUDPBytes || m.ID != 9 || m.Response || len(m.Questions) != 1 || m.Questions[0] != q.q || len(m.Answers)+len(m.Authorities) > 0 || len(m.Additionals) > 1 {
		t.Fatalf("%x is asked as %s", msg, m.GoString())
	}
	for _, r := range m.Additionals {
		if opt, ok := r.Body.(*dnsmessage.OPTResource); !ok || len(opt.Options) > 0 || r.Header.Class > maxUDPAnswer {
			t.Fatalf("%x is asked as %s", msg, m.GoString())
		}
	}
	// An answer has the guest's id and spelling.
	out[2] |= 0x80
	if a, err := parseAnswer(out, &sent); err != nil || len(a.addrs) > 0 {
		t.Fatalf("%x: %v, %v", out, a, err)
	}
	back := unpack(t, q.frame(out)[LengthBytes:])
	if back.ID != q.id || back.Questions[0] != q.q {
		t.Fatalf("%x comes back as %s", msg, back.GoString())
	}
}

// What is credited, computed by parsing the answer with the library.
func creditedSlowly(m dnsmessage.Message, name string) (out []netip.Addr) {
	for range maxChain {
		var next string
		for _, r := range m.Answers {
			if r.Header.Class != dnsmessage.ClassINET || !dnsname.Equal(r.Header.Name.String(), name) {
				continue
			}
			switch b := r.Body.(type) {
			case *dnsmessage.AResource:
				out = append(out, netip.AddrFrom4(b.A))
			case *dnsmessage.AAAAResource:
				out = append(out, netip.AddrFrom16(b.AAAA))
			case *dnsmessage.CNAMEResource:
				if next == "" {
					next = b.CNAME.String()
				}
			}
		}
		if len(out) > 0 || next == "" {
			return out
		}
		name = next
	}
	return nil
}

func FuzzParseAnswer(f *testing.F) {
	asked := ask(f, 7, "www.example.com", dnsmessage.TypeA)
	f.Add(answerTo(f, asked, dnsmessage.RCodeSuccess, "www.example.com CNAME a.example", "a.example A 192.0.2.1", "bank.example A 192.0.2.9"))
	f.Add(answerTo(f, asked, dnsmessage.RCodeNameError))
	f.Add(answerTo(f, asked, dnsmessage.RCodeSuccess, "a.example AAAA 2001:db8::1", "WWW.example.com CNAME A.example"))
	q, err := parseQuestion(asked)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		a, err := parseAnswer(msg, &query{7, &q})
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(msg) != nil {
			return // the library also parses the bodies of other records
		}
		want := creditedSlowly(m, "www.example.com.")
		if m.RCode != dnsmessage.RCodeSuccess {
			want = nil
		}
		if !slices.Equal(a.addrs, want) {
			t.Fatalf("%s\nis credited %v, want %v", m.GoString(), a.addrs, want)
		}
		if len(q.truncated(msg)) > plainUDPBytes {
			t.Fatal("a cut answer is too long")
		}
	})
}

func TestAskCancelled(t *testing.T) {
	at := listen(t, func(*net.UDPConn, netip.AddrPort, []byte) {}, nil)
	f := newForwarder(t, Config{Servers: []netip.AddrPort{at}}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := f.Lookup(ctx, "example.com"); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if p := f.servers.plan(time.Now()); len(p.probe) > 0 || f.servers.list[0].misses > 0 {
		t.Error("the server is blamed")
	}
}
