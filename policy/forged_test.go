package policy_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"cleat/dns"
	"cleat/packet"
	"cleat/policy"
	"cleat/usernet"
)

// bank.example is at bankAddr, ads.example at adsAddr. The guest's accomplice owns
// evil.test and controls its server.
const (
	bankAddr  = "192.0.2.10"
	adsAddr   = "192.0.2.20"
	thiefAddr = "198.51.100.66"
)

// guest is a hostile process behind a forwarder and a policy.
type guest struct {
	t   *testing.T
	p   *policy.Policy
	fwd *dns.Forwarder
	// records that the accomplice adds to answers for evil.test
	evil []dnsmessage.Resource
}

func a(name, addr string) dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: 300},
		Body:   &dnsmessage.AResource{A: netip.MustParseAddr(addr).As4()},
	}
}

func cname(name, to string) dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: 300},
		Body:   &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(to)},
	}
}

// resolve is the host's resolver.
func (g *guest) resolve(q []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(q); err != nil {
		g.t.Error(err)
		return nil
	}
	m.Response, m.Additionals = true, nil
	switch m.Questions[0].Name.String() {
	case "bank.example.":
		m.Answers = []dnsmessage.Resource{a("bank.example.", bankAddr)}
	case "ads.example.":
		m.Answers = []dnsmessage.Resource{a("ads.example.", adsAddr)}
	case "alias.example.":
		m.Answers = []dnsmessage.Resource{cname("alias.example.", "ads.example."), a("ads.example.", adsAddr)}
	default:
		m.Answers = g.evil
	}
	if m.Questions[0].Type != dnsmessage.TypeA {
		m.Answers = nil
	}
	b, err := m.Pack()
	if err != nil {
		g.t.Error(err)
	}
	return b
}

func (g *guest) dial(context.Context, string, netip.AddrPort) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		buf := make([]byte, 4096)
		if n, err := theirs.Read(buf); err == nil {
			theirs.Write(g.resolve(buf[:n]))
			io.Copy(io.Discard, theirs)
		}
	}()
	return ours, nil
}

func newGuest(t *testing.T, text string) *guest {
	g := &guest{t: t}
	rules, err := policy.Parse("rules", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if g.p, err = policy.New(policy.Config{Rules: rules}); err != nil {
		t.Fatal(err)
	}
	g.fwd, err = dns.New(dns.Config{
		Servers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")},
		Dial:    g.dial, Learn: g.p.Learn, MayAsk: g.p.MayAsk,
	})
	if err != nil {
		t.Fatal(err)
	}
	g.p.Bind(policy.Network{
		Resolvers: []netip.Addr{netip.MustParseAddr("10.0.2.3")},
		DNS:       func(usernet.Flow) net.Conn { return g.fwd.Packets() },
	})
	if err := g.p.Prime(t.Context(), g.fwd.Lookup); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- g.fwd.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ran })
	return g
}

// query returns a DNS query of the guest.
func query(name string, typ dnsmessage.Type, class dnsmessage.Class) dnsmessage.Message {
	return dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: class}},
	}
}

// send sends a packet to a server through the policy, and waits until the conversation is
// over.
func (g *guest) send(server string, m dnsmessage.Message) {
	b, err := m.Pack()
	if err != nil {
		g.t.Fatal(err)
	}
	v := g.p.Judge(usernet.Flow{Protocol: packet.UDP, Destination: netip.MustParseAddrPort(server)})
	if v.Action != usernet.Use {
		g.t.Fatalf("a question to %s: %v", server, v.Action)
	}
	v.Conn.Write(b)
	io.Copy(io.Discard, v.Conn)
	v.Conn.Close()
}

func (g *guest) reaches(addr string) bool {
	v := g.p.Judge(usernet.Flow{Protocol: packet.TCP, Destination: netip.AddrPortFrom(netip.MustParseAddr(addr), 443)})
	return v.Action == usernet.Allow
}

// If only bank.example is allowed, the guest reaches bankAddr and not thiefAddr, whatever
// it does.
func TestForgedAnswersDoNotExtendAllow(t *testing.T) {
	const ours = "10.0.2.3:53"
	ask := func(name string) dnsmessage.Message {
		return query(name, dnsmessage.TypeA, dnsmessage.ClassINET)
	}
	answer := func(q dnsmessage.Message, records ...dnsmessage.Resource) dnsmessage.Message {
		q.Response, q.Answers = true, records
		return q
	}
	for _, c := range []struct {
		name string
		evil []dnsmessage.Resource
		do   func(g *guest)
	}{
		{"asks for its own name", []dnsmessage.Resource{a("evil.test.", thiefAddr)}, func(g *guest) {
			g.send(ours, ask("evil.test."))
		}},
		{"the answer has the bank's name beside its own", []dnsmessage.Resource{a("evil.test.", thiefAddr), a("bank.example.", thiefAddr)}, func(g *guest) {
			g.send(ours, ask("evil.test."))
		}},
		{"the answer has nothing but the bank's name", []dnsmessage.Resource{a("bank.example.", thiefAddr)}, func(g *guest) {
			g.send(ours, ask("evil.test."))
		}},
		{"the answer leads to the bank's name by CNAME", []dnsmessage.Resource{cname("evil.test.", "bank.example."), a("bank.example.", thiefAddr)}, func(g *guest) {
			g.send(ours, ask("evil.test."))
		}},
		{"the answer leads from the bank's name by CNAME", []dnsmessage.Resource{cname("bank.example.", "evil.test."), a("evil.test.", thiefAddr)}, func(g *guest) {
			g.send(ours, ask("evil.test."))
		}},
		{"a name that ends like the bank's", []dnsmessage.Resource{a("notbank.example.", thiefAddr)}, func(g *guest) {
			g.send(ours, ask("notbank.example."))
		}},
		{"a name that begins like the bank's", []dnsmessage.Resource{a("bank.example.evil.test.", thiefAddr)}, func(g *guest) {
			g.send(ours, ask("bank.example.evil.test."))
		}},
		{"a name below the bank's", []dnsmessage.Resource{a("x.bank.example.", thiefAddr)}, func(g *guest) {
			g.send(ours, ask("x.bank.example."))
		}},
		{"a packet that claims to be the answer", nil, func(g *guest) {
			g.send(ours, answer(ask("bank.example."), a("bank.example.", thiefAddr)))
		}},
		{"a question that brings its answer", nil, func(g *guest) {
			q := ask("bank.example.")
			q.Additionals = []dnsmessage.Resource{a("bank.example.", thiefAddr)}
			g.send(ours, q)
		}},
		{"two questions, the bank's and its own", []dnsmessage.Resource{a("evil.test.", thiefAddr)}, func(g *guest) {
			q := ask("bank.example.")
			q.Questions = append(q.Questions, ask("evil.test.").Questions[0])
			g.send(ours, q)
			q.Questions[0], q.Questions[1] = q.Questions[1], q.Questions[0]
			g.send(ours, q)
		}},
		{"another class", []dnsmessage.Resource{a("evil.test.", thiefAddr)}, func(g *guest) {
			g.send(ours, query("bank.example.", dnsmessage.TypeA, dnsmessage.ClassCHAOS))
		}},
		{"asks a server of its own: ours answers", nil, func(g *guest) {
			g.send(thiefAddr+":53", ask("bank.example."))
		}},
		{"sends the answer to a server of its own", nil, func(g *guest) {
			g.send(thiefAddr+":53", answer(ask("bank.example."), a("bank.example.", thiefAddr)))
		}},
		{"asks the bank's address", nil, func(g *guest) {
			g.send(bankAddr+":53", ask("evil.test."))
		}},
		{"asks over TLS", nil, func(g *guest) {
			v := g.p.Judge(usernet.Flow{Protocol: packet.TCP, Destination: netip.MustParseAddrPort(thiefAddr + ":853")})
			if v.Action != usernet.Refuse {
				g.t.Errorf("port 853: %v", v.Action)
			}
		}},
		{"says nothing, and has the address from elsewhere", nil, func(*guest) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, rules := range []string{"allow bank.example", "allow bank.example\nallow 203.0.113.0/24", "default deny\nallow bank.example:443/tcp"} {
					g := newGuest(t, rules)
					g.evil = c.evil
					c.do(g)
					g.send(ours, ask("bank.example."))
					if g.reaches(thiefAddr) {
						t.Errorf("%q: reaches the thief, known as %v", rules, g.p.Names(netip.MustParseAddr(thiefAddr)))
					}
					if !g.reaches(bankAddr) {
						t.Errorf("%q: the bank can't be reached", rules)
					}
				}
			})
		})
	}
}

// If ads.example is denied, the guest does not reach adsAddr, whatever it does.
func TestForgedAnswersDoNotEscapeDeny(t *testing.T) {
	const ours = "10.0.2.3:53"
	ask := func(name string) dnsmessage.Message {
		return query(name, dnsmessage.TypeA, dnsmessage.ClassINET)
	}
	for _, c := range []struct {
		name string
		evil []dnsmessage.Resource
		do   func(g *guest)
	}{
		{"says nothing, and has the address from elsewhere", nil, func(*guest) {}},
		{"asks honestly", nil, func(g *guest) { g.send(ours, ask("ads.example.")) }},
		{"asks for another name of it", nil, func(g *guest) { g.send(ours, ask("alias.example.")) }},
		{"gives it a name of its own", []dnsmessage.Resource{a("evil.test.", adsAddr)}, func(g *guest) {
			g.send(ours, ask("evil.test."))
		}},
		{"gives it very many names", []dnsmessage.Resource{a("evil.test.", adsAddr)}, func(g *guest) {
			for i := range 100 {
				name := "h" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ".evil.test."
				g.evil = []dnsmessage.Resource{a(name, adsAddr)}
				g.send(ours, ask(name))
			}
		}},
		{"has the name elsewhere", nil, func(g *guest) {
			g.p.Learn("evil.test", []netip.Addr{netip.MustParseAddr(thiefAddr)}, time.Minute)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, rules := range []string{"deny ads.example", "deny ads.example\nallow *.test\ndefault allow", "allow all\ndeny ads.example", "allow 192.0.2.0/24\ndeny ads.example"} {
					g := newGuest(t, rules)
					g.evil = c.evil
					c.do(g)
					for _, form := range []string{adsAddr, "::ffff:" + adsAddr, "64:ff9b::" + adsAddr} {
						if d := g.p.Explain(usernet.Flow{Protocol: packet.TCP, Destination: netip.AddrPortFrom(netip.MustParseAddr(form), 443)}); d.Action != usernet.Refuse {
							t.Errorf("%q: reaches %s: %s", rules, form, d.Reason)
						}
					}
					if g.reaches(bankAddr) == false {
						t.Errorf("%q: nothing can be reached", rules)
					}
				}
			})
		})
	}
}
