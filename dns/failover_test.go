package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// lookUp queries the IPv4 address of example.com.
func lookUp(t testing.TB, f *Forwarder) dnsmessage.Message {
	t.Helper()
	return unpack(t, exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeA)))
}

// address returns the first address of an answer.
func address(m dnsmessage.Message) string {
	return netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A).String()
}

// firstIsFirst checks that the first of two servers is asked first.
func firstIsFirst(t testing.TB, f *Forwarder) {
	t.Helper()
	if got := f.servers.plan(time.Now()).servers[0]; got != two()[0] {
		t.Errorf("%v is asked first", got)
	}
}

func TestFailover(t *testing.T) {
	yes := func(t *testing.T, a string) fake { return says(t, "example.com A "+a) }
	nxdomain := func(t *testing.T) fake { return fails(t, dnsmessage.RCodeNameError) }
	type servers func(t *testing.T, s *fakes)
	lost := func(n int32, then fake) fake {
		var asked atomic.Int32
		return func(network string, q []byte) []byte {
			if asked.Add(1) <= n {
				return nil
			}
			return then(network, q)
		}
	}
	for _, c := range []struct {
		name    string
		servers servers
		want    string // an address, or a response code
		after   time.Duration
	}{
		{"the first answers", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", yes(t, "198.51.100.1"))
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "198.51.100.1", 0},
		{"the first is dead", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", silent)
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "198.51.100.2", hedgeAfter},
		{"nobody listens at the first", func(t *testing.T, s *fakes) {
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "198.51.100.2", 0},
		{"the first can't", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", fails(t, dnsmessage.RCodeServerFailure))
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "198.51.100.2", 0},
		{"the first won't", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", fails(t, dnsmessage.RCodeRefused))
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "198.51.100.2", 0},
		{"the first does not speak so", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", fails(t, dnsmessage.RCodeNotImplemented))
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "198.51.100.2", 0},
		{"the first sends garbage", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", func(n string, q []byte) []byte { return append(yes(t, "198.51.100.1")(n, q)[:40], 0xff) })
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "198.51.100.2", 0},
		{"none can", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", fails(t, dnsmessage.RCodeRefused))
			s.set("192.0.2.2", fails(t, dnsmessage.RCodeServerFailure))
		}, "RCodeRefused", 0},
		{"one can't, one is dead", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", silent)
			s.set("192.0.2.2", fails(t, dnsmessage.RCodeServerFailure))
		}, "RCodeServerFailure", 10 * time.Second},
		{"all are dead", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", silent)
			s.set("192.0.2.2", silent)
		}, "RCodeServerFailure", 10 * time.Second},
		{"nobody listens anywhere", func(t *testing.T, s *fakes) {}, "RCodeServerFailure", 2 * hedgeAfter},
		{"a name that does not exist", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", nxdomain(t))
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "RCodeNameError", 0},
		{"a format error is for the guest to see", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", fails(t, dnsmessage.RCodeFormatError))
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "RCodeFormatError", 0},
		{"a slow first knows better than a quick second", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", late(1500*time.Millisecond, yes(t, "198.51.100.1")))
			s.set("192.0.2.2", nxdomain(t))
		}, "198.51.100.1", 1500 * time.Millisecond},
		{"a slow first need not be waited for when the second knows", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", late(1500*time.Millisecond, nxdomain(t)))
			s.set("192.0.2.2", yes(t, "198.51.100.2"))
		}, "198.51.100.2", hedgeAfter},
		{"a dead first is not waited for without end", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", silent)
			s.set("192.0.2.2", nxdomain(t))
		}, "RCodeNameError", hedgeAfter + deferNegative},
		{"both say no, the second first", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", late(time.Second, nxdomain(t)))
			s.set("192.0.2.2", nxdomain(t))
		}, "RCodeNameError", time.Second},
		{"the second says no, then the first can't", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", late(time.Second, fails(t, dnsmessage.RCodeServerFailure)))
			s.set("192.0.2.2", nxdomain(t))
		}, "RCodeNameError", time.Second},
		{"slow, and alone", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", late(4*time.Second, yes(t, "198.51.100.1")))
		}, "198.51.100.1", 4 * time.Second},
		{"one packet lost at each", func(t *testing.T, s *fakes) {
			s.set("192.0.2.1", lost(1, yes(t, "198.51.100.1")))
			s.set("192.0.2.2", lost(1, yes(t, "198.51.100.2")))
		}, "198.51.100.1", 2 * hedgeAfter},
		{"a resolver that restarts", func(t *testing.T, s *fakes) {
			time.AfterFunc(500*time.Millisecond, func() { s.set("192.0.2.1", yes(t, "198.51.100.1")) })
		}, "198.51.100.1", hedgeAfter},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s fakes
				c.servers(t, &s)
				f := newForwarder(t, Config{Servers: two()}, &s)
				start := time.Now()
				m := lookUp(t, f)
				got := m.RCode.String()
				if len(m.Answers) > 0 {
					got = address(m)
				}
				if took := time.Since(start); got != c.want || took != c.after {
					t.Errorf("%s after %v, want %s after %v", got, took, c.want, c.after)
				}
				if m.ID != 7 || len(m.Questions) != 1 {
					t.Error(m.GoString())
				}
			})
		})
	}
}

func TestSingleServerIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		var n atomic.Int32
		s.set("192.0.2.1", func(network string, q []byte) []byte {
			if n.Add(1) == 1 {
				return nil
			}
			return says(t, "example.com A 198.51.100.1")(network, q)
		})
		f := newForwarder(t, Config{}, &s)
		start := time.Now()
		if m := lookUp(t, f); len(m.Answers) != 1 || time.Since(start) != hedgeAfter {
			t.Errorf("%v after %v", m.GoString(), time.Since(start))
		}
	})
}

func TestDeadServerCostsTimeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", silent)
		s.set("192.0.2.2", says(t, "example.com A 198.51.100.2"))
		f := newForwarder(t, Config{Servers: two()}, &s)
		once := func() (took time.Duration, by string) {
			start := time.Now()
			m := lookUp(t, f)
			return time.Since(start), address(m)
		}
		slow := 0
		start := time.Now()
		for time.Since(start) < 10*time.Minute {
			if took, _ := once(); took > 0 {
				slow++
			}
			time.Sleep(time.Second)
		}
		if slow != maxMisses {
			t.Errorf("%d slow questions in ten minutes, want %d", slow, maxMisses)
		}
		if n := s.count("192.0.2.1"); n < 10 || n > 20 {
			t.Errorf("the dead server was asked %d times", n)
		}
		s.set("192.0.2.1", says(t, "example.com A 198.51.100.1"))
		back := time.Now()
		for {
			took, by := once()
			if took != 0 {
				t.Fatalf("a question took %v", took)
			}
			if by == "198.51.100.1" {
				break
			}
			if time.Since(back) > 2*probeLast {
				t.Fatal("a server that answers again is not asked first again")
			}
			time.Sleep(time.Second)
		}
	})
}

func TestSlowServerKeepsItsPlace(t *testing.T) {
	for _, c := range []struct {
		name string
		then fake // in between
	}{
		{"and answers in between", says(t, "example.com A 198.51.100.1")},
		{"and can't in between", fails(t, dnsmessage.RCodeServerFailure)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s fakes
				var n atomic.Int32
				s.set("192.0.2.1", func(network string, q []byte) []byte {
					if n.Add(1)%2 == 1 {
						time.Sleep(2 * hedgeAfter)
					}
					return c.then(network, q)
				})
				s.set("192.0.2.2", says(t, "example.com A 198.51.100.2"))
				f := newForwarder(t, Config{Servers: two()}, &s)
				for range 10 {
					lookUp(t, f)
				}
				firstIsFirst(t, f)
			})
		})
	}
}

func TestOnlyDeadServerIsNotProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		f := newForwarder(t, Config{}, &s)
		for i := range 5 {
			lookUp(t, f)
			if n := s.count("192.0.2.1"); n != defaultAttempts*(i+1) {
				t.Errorf("asked %d times for %d questions", n, i+1)
			}
			time.Sleep(probeLast)
		}
	})
}

// The owner of a name can make its answers strange. That does not count against the
// server.
func TestStrangeAnswersDoNotDemoteServer(t *testing.T) {
	var s fakes
	s.set("192.0.2.1", func(_ string, q []byte) []byte {
		return append(answerTo(t, q, dnsmessage.RCodeSuccess, "example.com A 198.51.100.1")[:40], 0xff)
	})
	s.set("192.0.2.2", says(t, "example.com A 198.51.100.2"))
	f := newForwarder(t, Config{Servers: two()}, &s)
	for range 3 {
		lookUp(t, f)
	}
	firstIsFirst(t, f)
}

func TestLackOfDescriptorsDoesNotDemoteServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", says(t, "example.com A 198.51.100.1"))
		s.set("192.0.2.2", says(t, "example.com A 198.51.100.2"))
		full := true
		f := newForwarder(t, Config{Servers: two(), Dial: func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
			if full {
				return nil, unix.EMFILE
			}
			return s.dial(ctx, network, server)
		}}, nil)
		if m := lookUp(t, f); m.RCode != dnsmessage.RCodeServerFailure {
			t.Error(m.GoString())
		}
		full = false
		lookUp(t, f)
		if n := s.count("192.0.2.2"); n != 0 {
			t.Errorf("the second server was asked %d times", n)
		}
	})
}

func TestRotate(t *testing.T) {
	conf := "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\noptions rotate\n"
	var s fakes
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		s.set(a, says(t))
	}
	f := newForwarder(t, Config{ResolvConf: text(&conf)}, &s)
	for range 9 {
		exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeMX))
	}
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		if n := s.count(a); n != 3 {
			t.Errorf("%s was asked %d times", a, n)
		}
	}
}

func TestLookup(t *testing.T) {
	// both answers by type: a to A, aaaa to AAAA.
	both := func(a, aaaa func(t *testing.T) fake) func(t *testing.T) fake {
		return func(t *testing.T) fake {
			return func(network string, q []byte) []byte {
				if unpack(t, q).Questions[0].Type == dnsmessage.TypeA {
					return a(t)(network, q)
				}
				return aaaa(t)(network, q)
			}
		}
	}
	a1 := func(t *testing.T) fake { return says(t, "example.com A 192.0.2.7") }
	aaaa1 := func(t *testing.T) fake { return says(t, "example.com AAAA 2001:db8::7") }
	nothing := func(t *testing.T) fake { return says(t) }
	code := func(c dnsmessage.RCode) func(t *testing.T) fake {
		return func(t *testing.T) fake { return fails(t, c) }
	}
	for _, c := range []struct {
		name, ask string
		server    func(t *testing.T) fake
		want      string
		ttl       time.Duration
		err       string
	}{
		{"both families", "example.com", both(a1, aaaa1), "192.0.2.7 2001:db8::7", 300 * time.Second, ""},
		{"upper case and dot", "Example.COM.", both(a1, aaaa1), "192.0.2.7 2001:db8::7", 300 * time.Second, ""},
		{"one family", "example.com", both(a1, nothing), "192.0.2.7", time.Minute, ""},
		{"no addresses", "example.com", nothing, "", time.Minute, ""},
		{"no such name", "example.com", code(dnsmessage.RCodeNameError), "", time.Minute, ""},
		{"the server can't", "example.com", code(dnsmessage.RCodeServerFailure), "", 0, "RCodeServerFailure"},
		{"half", "example.com", both(a1, code(dnsmessage.RCodeServerFailure)), "192.0.2.7", 0, ""},
		{"half, and that is empty", "example.com", both(nothing, code(dnsmessage.RCodeServerFailure)), "", 0, "RCodeServerFailure"},
		{"a name of ours", "host.cleat.internal", nothing, "10.0.2.2", time.Minute, ""},
		{"too long", strings.Repeat("a.", 130), nothing, "", 0, "look up"},
		{"long, over TCP", "example.com", both(func(t *testing.T) fake {
			return func(network string, q []byte) []byte {
				m := unpack(t, says(t, "example.com A 192.0.2.7", "example.com A 192.0.2.8")(network, q))
				if network == "udp" {
					m.Truncated, m.Answers = true, nil
				}
				return pack(t, m)
			}
		}, nothing), "192.0.2.7 192.0.2.8", time.Minute, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s fakes
			s.set("192.0.2.1", c.server(t))
			f := newForwarder(t, Config{Names: map[string][]netip.Addr{"host.cleat.internal": {netip.MustParseAddr("10.0.2.2")}}}, &s)
			addrs, ttl, err := f.Lookup(t.Context(), c.ask)
			var got []string
			for _, a := range addrs {
				got = append(got, a.String())
			}
			if strings.Join(got, " ") != c.want || ttl != c.ttl {
				t.Errorf("%v for %v, want %v for %v", got, ttl, c.want, c.ttl)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error is %v, want %q", err, c.err)
			}
		})
	}
}

func TestLookupWithoutServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForwarder(t, Config{}, &fakes{})
		_, _, err := f.Lookup(t.Context(), "example.com")
		if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "ask 192.0.2.1:53") {
			t.Errorf("error is %v", err)
		}
	})
}
