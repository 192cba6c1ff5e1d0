package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cleat/internal/ledger"

	"golang.org/x/net/dns/dnsmessage"
)

// long answers each query with about 60 KiB, over TCP.
func long(network string, q []byte) []byte {
	const records = 280
	out := slices.Clone(q)
	out[2] |= 0x80 // it is a response
	if network == "udp" {
		out[2] |= 0x02 // and truncated
		return out
	}
	binary.BigEndian.PutUint16(out[6:], records)
	for range records {
		// The question's name, TXT, IN, a TTL of 1 s, 201 bytes.
		out = append(out, 0xc0, questionAt, 0, 16, 0, 1, 0, 0, 0, 1, 0, 201, 200)
		out = append(out, make([]byte, 200)...)
	}
	return out
}

// pipelined returns n queries for distinct names as one TCP stream carries them.
func pipelined(t testing.TB, who, n int) (out []byte) {
	for i := range n {
		out = append(out, framed(ask(t, uint16(i), fmt.Sprintf("h%d-%d.example", who, i), dnsmessage.TypeTXT))...)
	}
	return out
}

// A guest that pipelines queries over many connections and reads no answer must not make
// the helper keep all answers.
func TestUnreadStreamsHoldLittleMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", long)
		f := newForwarder(t, Config{}, &s)
		heap := func() int {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int(m.HeapAlloc)
		}
		before := heap()
		const streams = 64
		for i := range streams {
			c := f.Stream()
			defer c.Close()
			go c.Write(pipelined(t, i, maxPipelined))
			synctest.Wait()
		}
		if grown := heap() - before; grown > 16<<20 {
			t.Errorf("%d MiB are in use", grown>>20)
		}
	})
}

// Unread answers over UDP are held up to a limit, over all conversations.
func TestUnreadDatagramsHoldLittleMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", func(_ string, q []byte) []byte {
			name := strings.TrimSuffix(unpack(t, q).Questions[0].Name.String(), ".")
			return answerTo(t, q, dnsmessage.RCodeSuccess, slices.Repeat([]string{name + " TXT " + strings.Repeat("x", 200)}, 14)...)
		})
		f := newForwarder(t, Config{}, &s)
		var open []net.Conn
		for i := range 2000 {
			m := unpack(t, ask(t, 7, fmt.Sprintf("h%d.example", i), dnsmessage.TypeTXT))
			var h dnsmessage.ResourceHeader
			h.SetEDNS0(65535, 0, false)
			m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
			c := f.Packets()
			open = append(open, c)
			c.Write(pack(t, m))
			synctest.Wait()
		}
		if n := f.guest.held.Load(); n > maxHeld || n < maxHeld/2 {
			t.Errorf("%d bytes unread", n)
		}
		if f.Stats().Dropped == 0 {
			t.Error("nothing dropped")
		}
		if n, err := open[0].Read(make([]byte, maxMessage)); err != nil || n < 14*200 {
			t.Errorf("read %d, %v", n, err)
		}
		for _, c := range open {
			c.Close()
		}
		if n := f.guest.held.Load(); n != 0 {
			t.Errorf("%d bytes unread in closed conversations", n)
		}
	})
}

// Look-ups of names in rules must work while the guest sends more queries than it may.
func TestLookupDuringFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", silent)
		s.set("192.0.2.2", func(network string, q []byte) []byte {
			if unpack(t, q).Questions[0].Name.String() != "rule.example." {
				return nil
			}
			if unpack(t, q).Questions[0].Type == dnsmessage.TypeAAAA {
				return answerTo(t, q, dnsmessage.RCodeSuccess, "rule.example AAAA 2001:db8::1")
			}
			return answerTo(t, q, dnsmessage.RCodeSuccess, "rule.example A 198.51.100.1")
		})
		f := newForwarder(t, Config{Servers: two()}, &s)
		for i := range 2 * waitingFactor * defaultQueries {
			c := f.Packets()
			defer c.Close()
			c.Write(ask(t, uint16(i), fmt.Sprintf("h%d.guest.example", i), dnsmessage.TypeA))
		}
		time.Sleep(2 * hedgeAfter) // every retry that the guest may have is in progress
		start := time.Now()
		addrs, _, err := f.Lookup(t.Context(), "rule.example")
		if err != nil || len(addrs) != 2 {
			t.Fatalf("look-up: %v, %v", addrs, err)
		}
		if took := time.Since(start); took > 2*hedgeAfter {
			t.Errorf("it took %v", took)
		}
	})
}

// counting counts the connections that are open at once.
type counting struct {
	dial      func(context.Context, string, netip.AddrPort) (net.Conn, error)
	now, most atomic.Int64
}

type countedConn struct {
	net.Conn
	once sync.Once
	gone func()
}

func (c *countedConn) Close() error { c.once.Do(c.gone); return c.Conn.Close() }

func (c *counting) Dial(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
	conn, err := c.dial(ctx, network, server)
	if err != nil {
		return nil, err
	}
	now := c.now.Add(1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	return &countedConn{Conn: conn, gone: func() { c.now.Add(-1) }}, nil
}

// However many names the rules have, and however slow the servers are, look-ups use few
// descriptors: those are part of the helper's reserve.
func TestLookupsUseFewDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", silent)
		s.set("192.0.2.2", silent)
		c := counting{dial: s.dial}
		f, err := New(Config{Servers: two(), Dial: c.Dial})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { f.Lookup(t.Context(), "rule.example") })
		}
		wg.Wait()
		s.wg.Wait()
		if most := c.most.Load(); most > LookupDescriptors || most < LookupDescriptors/2 {
			t.Errorf("%d sockets at once, want at most %d", most, LookupDescriptors)
		}
	})
}

// unsteady is a server that answers, or fails in a random way.
func unsteady(t testing.TB, r *rand.Rand) func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
	var mu sync.Mutex
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n)
	}
	var s fakes
	s.set("192.0.2.1", func(network string, q []byte) []byte {
		time.Sleep(time.Duration(roll(1500)) * time.Millisecond)
		switch roll(8) {
		case 0:
			return nil
		case 1:
			return q[:len(q)/2]
		case 2:
			return answerTo(t, q, dnsmessage.RCodeServerFailure)
		case 3:
			return answerTo(t, q, dnsmessage.RCodeNameError)
		case 4:
			all := long(network, q)
			return all[:len(all)/2]
		}
		return long(network, q)
	})
	return func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
		if roll(8) == 0 {
			return nil, errRefused
		}
		return s.dial(ctx, network, netip.MustParseAddrPort("192.0.2.1:53"))
	}
}

// All charges are refunded, however conversations and servers' answers end.
func TestChargesAreRefunded(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			limit := ledger.Cost{Descriptors: 20, Bytes: 2 << 20, Goroutines: 120}
			account := ledger.New(limit)
			f, err := New(Config{Servers: two(), Dial: unsteady(t, rand.New(rand.NewPCG(seed, 1))), Ledger: account, Queries: 32})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- f.Run(ctx) }()
			var guests sync.WaitGroup
			for i := range 200 {
				udp, questions, wait, half := r.IntN(2) == 0, 1+r.IntN(20), time.Duration(r.IntN(12000))*time.Millisecond, r.IntN(3) == 0
				read := r.IntN(2) == 0
				guests.Go(func() { beGuest(t, f, i/2, udp, questions, wait, half, read) })
				time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
			}
			if seed%2 == 0 { // and it ends in the middle
				time.Sleep(time.Second)
				cancel()
			}
			guests.Wait()
			cancel()
			<-ran
			u := account.Usage()
			if u.Used != (ledger.Cost{}) || f.guest.held.Load() != 0 {
				t.Errorf("seed %d: %+v is still charged, %d bytes held", seed, u.Used, f.guest.held.Load())
			}
			if u.Refused == 0 || u.Peak.Bytes < 1<<20 || u.Peak.Descriptors < 10 {
				t.Errorf("seed %d: this test asks for too little: %+v", seed, u)
			}
		})
	}
}

// beGuest opens a conversation and closes it after a while. Guests with the same number
// send the same queries.
func beGuest(t testing.TB, f *Forwarder, who int, udp bool, questions int, wait time.Duration, half, read bool) {
	var c net.Conn
	if udp {
		c = f.Packets()
	} else {
		c = f.Stream()
	}
	if c == nil {
		return
	}
	defer c.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.Close()
	wg.Go(func() {
		if !udp {
			c.Write(pipelined(t, who, questions))
			if half {
				c.(interface{ CloseWrite() error }).CloseWrite()
			}
			return
		}
		for i := range questions {
			c.Write(ask(t, uint16(i), fmt.Sprintf("h%d-%d.example", who, i), dnsmessage.TypeTXT))
		}
	})
	if read {
		wg.Go(func() { io.Copy(io.Discard, c) })
	}
	time.Sleep(wait)
}

// Each kind of charge is refused in turn. The guest gets an error, or its conversation
// ends.
func TestRefusedCharges(t *testing.T) {
	q := ask(t, 7, "example.com", dnsmessage.TypeA)
	question := questionCost.Plus(ledger.Cost{Bytes: len(q)})
	var records []string
	for i := range 20 { // as many as fit into 512 bytes
		records = append(records, "example.com A 192.0.2."+strconv.Itoa(i))
	}
	const small, large = 128, 4096 // bytes: more than SERVFAIL, more than the records
	for _, c := range []struct {
		name     string
		limit    ledger.Cost // beside the conversation's cost
		udp, tcp string      // "silence", "closed", or a response code
	}{
		{"a conversation", ledger.Cost{}, "silence", "closed"},
		{"no answer", question, "silence", "closed"},
		{"no try", question.Plus(ledger.Cost{Bytes: small}), "RCodeServerFailure", "RCodeServerFailure"},
		{"no socket", question.Plus(ledger.Cost{Bytes: 1 << 20, Goroutines: 9}), "RCodeServerFailure", "RCodeServerFailure"},
		{"no goroutine", question.Plus(ledger.Cost{Bytes: 1 << 20, Descriptors: 9}), "RCodeServerFailure", "RCodeServerFailure"},
		{"no room for the answer", question.Plus(tryCost).Plus(ledger.Cost{Bytes: small}), "RCodeServerFailure", "RCodeServerFailure"},
		{"enough", question.Plus(tryCost).Plus(ledger.Cost{Bytes: large}), "RCodeSuccess", "RCodeSuccess"},
	} {
		for _, over := range []struct {
			name string
			open func(*Forwarder) net.Conn
			cost ledger.Cost
			want string
			exch func(net.Conn) ([]byte, error)
		}{
			{"UDP", (*Forwarder).Packets, packetsCost, c.udp, func(conn net.Conn) ([]byte, error) {
				conn.Write(q)
				buf := make([]byte, maxMessage)
				n, err := conn.Read(buf)
				return buf[:n], err
			}},
			{"TCP", (*Forwarder).Stream, streamCost, c.tcp, func(conn net.Conn) ([]byte, error) {
				conn.Write(framed(q))
				return ReadMessage(conn, maxMessage)
			}},
		} {
			t.Run(c.name+", "+over.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var s fakes
					s.set("192.0.2.1", says(t, records...))
					account := ledger.New(over.cost.Plus(c.limit))
					f := newForwarder(t, Config{Ledger: account}, &s)
					start := time.Now()
					conn := over.open(f)
					if c.limit == (ledger.Cost{}) && over.open(f) != nil {
						t.Fatal("a second conversation")
					}
					msg, err := over.exch(conn)
					got := "silence"
					switch {
					case err == nil:
						got = unpack(t, msg).RCode.String()
					case err != io.EOF:
						t.Error(err)
					case time.Since(start) < lingers:
						got = "closed"
					}
					if got != over.want {
						t.Errorf("%s, want %s", got, over.want)
					}
					conn.Close()
					synctest.Wait()
					if u := account.Usage(); u.Used != (ledger.Cost{}) {
						t.Errorf("%+v is still charged", u.Used)
					}
				})
			})
		}
	}
}

// An exhausted ledger does not prevent our own look-ups.
func TestLookupIsNotCharged(t *testing.T) {
	var s fakes
	s.set("192.0.2.1", says(t, "rule.example A 198.51.100.1"))
	account := ledger.New(ledger.Cost{})
	f := newForwarder(t, Config{Ledger: account}, &s)
	if addrs, _, err := f.Lookup(t.Context(), "rule.example"); err != nil || len(addrs) == 0 {
		t.Errorf("%v, %v", addrs, err)
	}
	if u := account.Usage(); u.Refused != 0 || u.Peak != (ledger.Cost{}) {
		t.Errorf("%+v", u)
	}
}

// The charge for conversations covers what they use.
func TestCosts(t *testing.T) {
	const many = 400
	for _, c := range []struct {
		name string
		open func(f *Forwarder) net.Conn
		cost int
	}{
		{"UDP", (*Forwarder).Packets, packetsCost.Bytes},
		{"TCP", (*Forwarder).Stream, streamCost.Bytes},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newForwarder(t, Config{}, &fakes{})
			memory := func() int {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int(m.HeapAlloc + m.StackInuse)
			}
			c.open(f).Close() // exclude what only the first one uses
			before := memory()
			var open []net.Conn
			for range many {
				open = append(open, c.open(f))
			}
			if each := (memory() - before) / many; each > c.cost {
				t.Errorf("%d bytes each, charged %d", each, c.cost)
			}
			for _, conn := range open {
				conn.Close()
			}
		})
	}
}

// An answer over TCP is charged before it is read.
func TestAnswerOverTCPIsChargedFirst(t *testing.T) {
	var s fakes
	s.set("192.0.2.1", long)
	q := ask(t, 7, "example.com", dnsmessage.TypeTXT)
	limit := streamCost.Plus(questionCost).Plus(tryCost)
	limit.Bytes += 32 << 10
	f := newForwarder(t, Config{Ledger: ledger.New(limit)}, &s)
	if m := unpack(t, exchangeTCP(t, f, q)); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("%s, want SERVFAIL", m.RCode)
	}
	if n := f.Stats().Dropped; n != 1 {
		t.Errorf("%d dropped, want 1", n)
	}
}

// A probe's answer is dropped.
func TestProbesHoldNothing(t *testing.T) {
	var s fakes
	s.set("192.0.2.1", says(t, "example.com A 192.0.2.1"))
	account := ledger.New(ledger.Cost{Bytes: 1 << 20, Descriptors: 9, Goroutines: 9})
	f := newForwarder(t, Config{Ledger: account}, &s)
	q, err := parseQuestion(ask(t, 7, "example.com", dnsmessage.TypeA))
	if err != nil {
		t.Fatal(err)
	}
	f.probe(f.guest, two()[0], &q, transport{})
	if u := account.Usage(); u.Used != (ledger.Cost{}) || u.Peak.Descriptors != 1 {
		t.Errorf("%+v", u)
	}
}

func TestSettle(t *testing.T) {
	for _, c := range []struct {
		name        string
		held, chose int
		want        bool
		left        int
	}{
		{"one of several", 300, 100, true, 100},
		{"an answer of ours", 0, 100, true, 100},
		{"an answer of ours in place of a shorter one", 50, 100, true, 100},
		{"none", 300, 0, true, 0},
		{"too long", 300, 1001, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			led := ledger.New(ledger.Cost{Bytes: 1000})
			b := account{budget: newBudget(led, 1, 1)}
			if !b.hold(c.held) {
				t.Fatal("refused")
			}
			got := b.settle(c.chose)
			if left := led.Usage().Used.Bytes; got != c.want || left != c.left || int(b.held.Load()) != c.left {
				t.Errorf("%t, %d bytes are charged, %d held", got, left, b.held.Load())
			}
		})
	}
}
