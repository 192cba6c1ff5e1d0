package dns

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"cleat/internal/ledger"

	"golang.org/x/net/dns/dnsmessage"
)

// Identical queries at the same time share one exchange. Otherwise each would give
// another chance to somebody who guesses ports and ids.
func TestIdenticalQueriesShareAnExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", late(hedgeAfter/2, says(t, "example.com A 192.0.2.7")))
		account := ledger.New(ledger.Cost{Descriptors: 99, Bytes: 1 << 20, Goroutines: 999})
		f := newForwarder(t, Config{Ledger: account}, &s)
		names := []string{"example.com", "Example.com", "EXAMPLE.COM"}
		var guests sync.WaitGroup
		for i := range 60 {
			guests.Go(func() {
				m := unpack(t, exchangeUDP(t, f, ask(t, uint16(i), names[i%3], dnsmessage.TypeA)))
				if m.ID != uint16(i) || m.Questions[0].Name.String() != names[i%3]+"." || address(m) != "192.0.2.7" {
					t.Errorf("guest %d, asking for %s, got %s", i, names[i%3], m.GoString())
				}
			})
		}
		guests.Wait()
		if n := s.count("192.0.2.1"); n != 1 {
			t.Errorf("the server was asked %d times", n)
		}
		exchangeUDP(t, f, ask(t, 1, "example.com", dnsmessage.TypeA))
		if n := s.count("192.0.2.1"); n != 2 {
			t.Errorf("a later question: the server was asked %d times", n)
		}
		synctest.Wait()
		if u := account.Usage(); u.Used != (ledger.Cost{}) {
			t.Errorf("%+v is still charged", u.Used)
		}
	})
}

func TestDifferentQueriesAreSeparate(t *testing.T) {
	with := func(change func(*dnsmessage.Message)) []byte {
		m := unpack(t, ask(t, 7, "example.com", dnsmessage.TypeA))
		change(&m)
		return pack(t, m)
	}
	edns := func(bytes int, dnssec bool) func(*dnsmessage.Message) {
		return func(m *dnsmessage.Message) {
			var h dnsmessage.ResourceHeader
			h.SetEDNS0(bytes, 0, dnssec)
			m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
		}
	}
	questions := [][]byte{
		with(func(*dnsmessage.Message) {}),
		with(func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeAAAA }),
		with(func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }),
		with(func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("example.co.") }),
		with(func(m *dnsmessage.Message) { m.RecursionDesired = false }),
		with(func(m *dnsmessage.Message) { m.CheckingDisabled = true }),
		with(func(m *dnsmessage.Message) { m.AuthenticData = true }),
		with(edns(1232, false)),
		with(edns(1232, true)),
		with(edns(1000, false)),
	}
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", late(hedgeAfter/2, says(t)))
		f := newForwarder(t, Config{}, &s)
		var guests sync.WaitGroup
		for _, q := range questions {
			guests.Go(func() { exchangeUDP(t, f, q) })
		}
		guests.Wait()
		if n := s.count("192.0.2.1"); n != len(questions) {
			t.Errorf("%d questions for %d", n, len(questions))
		}
	})
}

// A server receives the question and the EDNS fields that concern it, and nothing else of
// the guest's message.
func TestQueriesAreRebuilt(t *testing.T) {
	var option, dnssec dnsmessage.ResourceHeader
	option.SetEDNS0(65535, 0, false)
	dnssec.SetEDNS0(1000, 0, true)
	ask := func(change func(*dnsmessage.Message)) []byte {
		m := unpack(t, ask(t, 7, "Example.com", dnsmessage.TypeA))
		change(&m)
		return pack(t, m)
	}
	for _, c := range []struct {
		name string
		q    []byte
		want []byte // after the id
	}{
		{"plain", ask(func(*dnsmessage.Message) {}), ask(func(*dnsmessage.Message) {})},
		{"flags of an answer", ask(func(m *dnsmessage.Message) {
			m.Authoritative, m.Truncated, m.RecursionAvailable, m.RCode = true, true, true, 5
		}), ask(func(*dnsmessage.Message) {})},
		{"flags of a question", ask(func(m *dnsmessage.Message) {
			m.RecursionDesired, m.AuthenticData, m.CheckingDisabled = false, true, true
		}), ask(func(m *dnsmessage.Message) {
			m.RecursionDesired, m.AuthenticData, m.CheckingDisabled = false, true, true
		})},
		{"records", ask(func(m *dnsmessage.Message) {
			m.Answers = []dnsmessage.Resource{record(t, "bank.example A 192.0.2.9")}
			m.Authorities, m.Additionals = m.Answers, m.Answers
		}), ask(func(*dnsmessage.Message) {})},
		{"bytes behind the message", append(ask(func(*dnsmessage.Message) {}), "more"...), ask(func(*dnsmessage.Message) {})},
		{"an option of EDNS", ask(func(m *dnsmessage.Message) {
			m.Additionals = []dnsmessage.Resource{{Header: option, Body: &dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 8, Data: []byte("secret")}}}}}
		}), ask(func(m *dnsmessage.Message) {
			h := option
			h.Class = maxUDPAnswer
			m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
		})},
		{"signatures wanted", ask(func(m *dnsmessage.Message) {
			m.Additionals = []dnsmessage.Resource{{Header: dnssec, Body: &dnsmessage.OPTResource{}}}
		}), ask(func(m *dnsmessage.Message) {
			m.Additionals = []dnsmessage.Resource{{Header: dnssec, Body: &dnsmessage.OPTResource{}}}
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s fakes
			var got []byte
			s.set("192.0.2.1", func(_ string, q []byte) []byte {
				got = bytes.Clone(q)
				return answerTo(t, q, dnsmessage.RCodeSuccess)
			})
			f := newForwarder(t, Config{}, &s)
			exchangeUDP(t, f, c.q)
			if !bytes.Equal(got[2:], c.want[2:]) {
				t.Errorf("the server got\n%x, want\n%x", got[2:], c.want[2:])
			}
		})
	}
}

// A message may claim to have 65,535 questions. Those after the second are not parsed.
func TestManyQuestionsInOneMessage(t *testing.T) {
	msg := append([]byte{0, 7, 1, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0}, strings.Repeat("\x00\x00\x01\x00\x01", 13000)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := parseQuestion(msg)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
		t.Errorf("%d bytes are taken to read %d", n, len(msg))
	}
	if err == nil {
		t.Error("taken as a question")
	}
}

// However much a guest accepts over UDP, a long answer that a server gave over TCP is
// truncated.
func TestLongAnswersAreTruncatedOverUDP(t *testing.T) {
	var s fakes
	s.set("192.0.2.1", says(t, slices.Repeat([]string{"example.com TXT " + strings.Repeat("x", 200)}, 40)...))
	conf := "nameserver 192.0.2.1\noptions use-vc\n"
	f := newForwarder(t, Config{ResolvConf: text(&conf)}, &s)
	m := unpack(t, ask(t, 7, "example.com", dnsmessage.TypeTXT))
	var h dnsmessage.ResourceHeader
	h.SetEDNS0(65535, 0, false)
	m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	if got := exchangeUDP(t, f, pack(t, m)); len(got) > udpBuffer || !unpack(t, got).Truncated {
		t.Errorf("%d bytes, truncated: %t", len(got), unpack(t, got).Truncated)
	}
}
