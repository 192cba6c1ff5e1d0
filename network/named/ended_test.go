package named_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
)

// stream is a TCP connection whose server sends without being asked.
type stream struct{ client, server net.Conn }

// dial opens a stream from one namespace to a port of another, by an address.
func dial(t *testing.T, from, server *netns.NS, port, to string) *stream {
	t.Helper()
	var l net.Listener
	must(t, server.Do(func() (err error) { l, err = net.Listen("tcp", ":"+port); return err }))
	defer l.Close()
	s := &stream{}
	must(t, from.Do(func() (err error) { s.client, err = net.DialTimeout("tcp", to, 5*time.Second); return err }))
	var err error
	s.server, err = l.Accept()
	must(t, err)
	t.Cleanup(func() { s.client.Close(); s.server.Close() })
	return s
}

// lives reports whether what either end sends arrives.
func (s *stream) lives(wait time.Duration) bool {
	for _, ends := range [][2]net.Conn{{s.server, s.client}, {s.client, s.server}} {
		if _, err := ends[0].Write([]byte("x")); err != nil {
			return false
		}
		ends[1].SetReadDeadline(time.Now().Add(wait))
		if _, err := ends[1].Read(make([]byte, 100)); err != nil {
			return false
		}
	}
	return true
}

// A rule ends the connections that it denies, also those inside a bridge that passed no packets
// through the rules before, and no others. So does the loss of an exception, a policy, and a
// command that is killed and completed by the next one.
func TestRulesEndConnections(t *testing.T) {
	tb := newTestbed(t, "a", "b", "c")
	must(t, link.SetBridgeNetfilter(tb.host, false)) // only our bridges pass packets through netfilter
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	must(t, tb.create(named.NetworkSpec{Name: "db", Subnets: subnets(2)}))
	at := map[string]string{}
	for c, network := range map[string]string{"a": "web", "b": "web", "c": "db"} {
		e, err := tb.connect(network, c, named.Connection{Ports: map[string][]named.Port{"b": {{Protocol: "tcp", HostPort: 8080, Port: 80}}}[c]})
		must(t, err)
		at[c] = e.Addresses[0].String()
	}
	rule := func(do func(text string) error, text string) {
		t.Helper()
		must(t, tb.onHost(func() error { return do(text) }))
	}
	allow := func(text string) error { _, err := named.Allow(t.Context(), tb.cfg, text); return err }
	deny := func(text string) error { _, err := named.Deny(t.Context(), tb.cfg, text); return err }
	removeAllow := func(text string) error { _, err := named.RemoveRule(t.Context(), tb.cfg, true, text); return err }
	a, b, c := tb.containers["a"], tb.containers["b"], tb.containers["c"]
	expect := func(when string, ended *stream, others ...*stream) {
		t.Helper()
		if ended.lives(300 * time.Millisecond) {
			t.Errorf("%s: the denied connection goes on", when)
		}
		for i, s := range others {
			if !s.lives(5 * time.Second) {
				t.Errorf("%s: allowed connection %d has ended", when, i)
			}
		}
	}
	published := dial(t, tb.outside, b, "80", "198.51.100.1:8080")
	inside := dial(t, a, b, "81", at["b"]+":81")
	back := dial(t, b, a, "82", at["a"]+":82")
	rule(deny, "web/a to web/b:81")
	expect("deny inside a bridge", inside, published, back)

	rule(allow, "web/a to db/c:83")
	across := dial(t, a, c, "83", at["c"]+":83")
	out := dial(t, a, tb.outside, "84", "198.51.100.2:84")
	rule(removeAllow, "web/a to db/c:83")
	expect("an allow is removed", across, published, back, out)

	rule(deny, "198.51.100.2 to web/b:80")
	expect("deny a client of a published port", published, back, out)

	rules, defaultDeny, err := named.ParseRules("web.rules", strings.NewReader("default deny\nallow web/b to web/a"), tb.store.Exists)
	must(t, err)
	must(t, tb.onHost(func() error { return named.SetPolicy(t.Context(), tb.cfg, "web", rules, defaultDeny) }))
	expect("default deny", out, back)

	for points := 0; ; points++ {
		rule(allow, "web/a to db/c:83")
		across, n := dial(t, a, c, "83", at["c"]+":83"), 0
		tb.cfg.Attach.Checkpoint = func() error {
			if n++; n > points {
				return attach.ErrKilled
			}
			return nil
		}
		err := tb.onHost(func() error { return removeAllow("web/a to db/c:83") })
		tb.cfg.Attach.Checkpoint = nil
		if err == nil {
			break
		}
		if !errors.Is(err, attach.ErrKilled) {
			t.Fatal(err)
		}
		must(t, tb.repair())
		expect("a killed command", across, back)
	}
	tb.check()
}
