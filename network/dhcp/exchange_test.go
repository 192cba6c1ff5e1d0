package dhcp

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/link"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

const (
	discover = dhcpv4.MessageTypeDiscover
	request  = dhcpv4.MessageTypeRequest
	decline  = dhcpv4.MessageTypeDecline
)

// hop is the sender of answers.
var hop = link.MAC{2, 0, 0, 0, 0, 0x77}

// bench is an exchange whose clock, random numbers and servers are the test's.
type bench struct {
	*testing.T
	x    *exchange
	now  time.Duration
	sent []sending
}

type sending struct {
	at time.Duration
	m  *dhcpv4.DHCPv4
}

func newBench(t *testing.T) *bench {
	n := uint32(0)
	xid := func() (x dhcpv4.TransactionID) {
		n++
		binary.BigEndian.PutUint32(x[:], n)
		return x
	}
	a := requester{client: Client{ID: Identifier{1, 2}, HostName: "web"}, mac: link.MAC{2, 0, 0, 0, 0, 1}, broadcast: true}
	return &bench{T: t, x: newExchange(a, mustAddr("192.0.2.77"), func() float64 { return 0.5 }, xid)}
}

// run advances the clock until a message is sent, the exchange is done, or a time has
// come.
func (b *bench) run(until time.Duration) {
	for !b.x.done() {
		if m := b.x.tick(b.now); m != nil {
			b.sent = append(b.sent, sending{b.now, m})
			return
		}
		if b.x.next() > until {
			b.now = until
			return
		}
		b.now = b.x.next()
	}
}

// last returns the last message sent, which must be of a type.
func (b *bench) last(kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	b.Helper()
	m := b.sent[len(b.sent)-1].m
	if m.MessageType() != kind {
		b.Fatalf("sent %s, want %s", m.MessageType(), kind)
	}
	return m
}

// answer delivers a server's answer to the last message, with changes.
func (b *bench) answer(kind dhcpv4.MessageType, changes ...func(*dhcpv4.DHCPv4)) {
	q := b.sent[len(b.sent)-1].m
	m := ack()
	m.UpdateOption(dhcpv4.OptMessageType(kind))
	m.TransactionID, m.ClientHWAddr = q.TransactionID, q.ClientHWAddr
	for _, c := range changes {
		c(m)
	}
	b.x.receive(b.now, hop, m)
}

func (b *bench) kinds() (all []dhcpv4.MessageType) {
	for _, s := range b.sent {
		all = append(all, s.m.MessageType())
	}
	return all
}

const (
	offer = dhcpv4.MessageTypeOffer
	yes   = dhcpv4.MessageTypeAck
	no    = dhcpv4.MessageTypeNak
)

// An exchange without problems.
func TestExchange(t *testing.T) {
	b := newBench(t)
	b.run(0)
	d := b.last(discover)
	if !d.IsBroadcast() || d.HostName() != "web" || string(d.Options.Get(dhcpv4.OptionClientIdentifier)) != "\x01\x02" ||
		!d.RequestedIPAddress().Equal(net.IP{192, 0, 2, 77}) || d.ServerIdentifier() != nil || !d.ClientIPAddr.Equal(nil) {
		t.Errorf("discover: %s", d.Summary())
	}
	for _, code := range []dhcpv4.OptionCode{dhcpv4.OptionSubnetMask, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionInterfaceMTU} {
		if !d.IsOptionRequested(code) {
			t.Errorf("%s is not requested", code)
		}
	}
	// Classless routes are requested before routers (RFC 3442, "DHCP Client Behavior").
	if l := d.ParameterRequestList(); slices.IndexFunc(l, is(dhcpv4.OptionClasslessStaticRoute)) > slices.IndexFunc(l, is(dhcpv4.OptionRouter)) {
		t.Errorf("requested: %s", l)
	}
	b.now = 3 * time.Second
	b.answer(offer)
	b.run(b.now)
	r := b.last(request)
	if !r.IsBroadcast() || !r.RequestedIPAddress().Equal(net.IP{192, 0, 2, 10}) || !r.ServerIdentifier().Equal(net.IP{192, 0, 2, 1}) || r.TransactionID != d.TransactionID || r.NumSeconds != 3 {
		t.Errorf("request: %s", r.Summary())
	}
	b.answer(yes, with(dhcpv4.OptionInterfaceMTU, 5, 0x78))
	if !b.x.done() {
		t.Fatal("the exchange is not done")
	}
	l := b.x.lease(at(100))
	// T1 and T2 have half of the largest jitter, which is a twentieth.
	if l.Address != mustPrefix("192.0.2.10/24") || l.MTU != 1400 || l.Obtained != at(103) || l.Expires != at(103+3600).Wall ||
		l.Renew != at(103+1800-45).Wall || l.Client.HostName != "web" || l.Rebind.Sub(at(103+3150).Wall) != -33750*time.Millisecond {
		t.Errorf("%+v", l)
	}
}

func is(want dhcpv4.OptionCode) func(dhcpv4.OptionCode) bool {
	return func(c dhcpv4.OptionCode) bool { return c.Code() == want.Code() }
}

// Without an answer, messages are sent at growing intervals.
func TestSilence(t *testing.T) {
	b := newBench(t)
	var at []time.Duration
	for b.now < 200*time.Second {
		b.run(200 * time.Second)
	}
	for _, s := range b.sent {
		at = append(at, s.at/time.Second)
	}
	// 1, 2, 4 … 64 s between them.
	if want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 127, 191}; !slices.Equal(at, want) {
		t.Errorf("sent at %v, want %v", at, want)
	}
	err := (&Error{Operation: "acquire lease", Link: "eth0", Elapsed: 10 * time.Second, Observed: b.x.observed})
	if !errors.Is(err, ErrNoAnswer) || err.Error() != "acquire lease on eth0: no DHCP server answered within 10s (messages sent: 9)" {
		t.Errorf("error: %v", err)
	}
}

// The back-off is that of the RFC: 4, 8, 16, 32, 64 s, each varied by up to a second.
func TestBackoff(t *testing.T) {
	for n, want := range []time.Duration{4, 8, 16, 32, 64, 64, 64} {
		for chance, off := range map[float64]time.Duration{0: -1, 0.5: 0, 1: 1} {
			if got := backoff(firstRenewPause, n+1, chance); got != (want+off)*time.Second {
				t.Errorf("after %d: %s, want %d s", n+1, got, want+off)
			}
		}
	}
}

// Answers to others are ignored.
func TestIgnoresOthers(t *testing.T) {
	for name, change := range map[string]func(*dhcpv4.DHCPv4){
		"other transaction":            func(m *dhcpv4.DHCPv4) { m.TransactionID[0]++ },
		"other machine":                func(m *dhcpv4.DHCPv4) { m.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, 2} },
		"other client on this machine": with(dhcpv4.OptionClientIdentifier, 1, 3),
		"empty identifier":             with(dhcpv4.OptionClientIdentifier),
		"a question":                   func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootRequest },
		"a confirmation":               with(dhcpv4.OptionDHCPMessageType, byte(yes)),
		"a refusal":                    with(dhcpv4.OptionDHCPMessageType, byte(no)),
		"no message type":              without(dhcpv4.OptionDHCPMessageType),
	} {
		b := newBench(t)
		b.run(0)
		b.answer(offer, change)
		if b.x.phase != selecting || len(b.x.observed.Refused) > 0 {
			t.Errorf("%s: accepted", name)
		}
		b.answer(offer, with(dhcpv4.OptionClientIdentifier, 1, 2))
		if b.x.phase != requesting {
			t.Errorf("%s: the next offer is ignored", name)
		}
	}
}

// Invalid offers are recorded, and a valid one is still accepted.
func TestInvalidOffers(t *testing.T) {
	b := newBench(t)
	b.run(0)
	b.answer(offer, yiaddr(0, 0, 0, 0))
	for i := range 10 {
		b.answer(offer, yiaddr(224, 0, 0, byte(i)))
	}
	if b.x.phase != selecting || len(b.x.observed.Refused) != maxRecent {
		t.Errorf("%+v", b.x.observed)
	}
	err := &Error{Observed: b.x.observed}
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "not acceptable: 192.0.2.1: invalid: address 224.0.0.6") {
		t.Errorf("error: %v", err)
	}
	b.answer(offer)
	if b.x.phase != requesting {
		t.Error("the valid offer is ignored")
	}
}

// After a NAK the exchange begins again: at once, then after growing delays.
func TestNAK(t *testing.T) {
	b := newBench(t)
	for i := range 4 {
		b.run(time.Hour)
		b.last(discover)
		b.answer(offer)
		b.run(b.now)
		b.last(request)
		b.answer(no, with(dhcpv4.OptionServerIdentifier, 192, 0, 2, 99)) // from another server
		if b.x.phase != requesting {
			t.Fatal("a NAK of another server is not ignored")
		}
		b.answer(no, with(dhcpv4.OptionMessage, []byte("wrong\nnetwork")...))
		if want := b.now + []time.Duration{0, 1, 2, 4}[i]*time.Second; b.x.phase != selecting || b.x.next() != want {
			t.Errorf("NAK %d: phase %d, next at %s, want %s", i, b.x.phase, b.x.next(), want)
		}
	}
	if b.sent[0].m.TransactionID == b.sent[2].m.TransactionID {
		t.Error("the new exchange has the old transaction id")
	}
	err := &Error{Observed: b.x.observed}
	if !errors.Is(err, ErrNak) || !strings.Contains(err.Error(), `refused by 192.0.2.1 ("wrong\nnetwork")`) {
		t.Errorf("error: %v", err)
	}
}

// An offer is requested three times, then all servers are asked again.
func TestServerSilent(t *testing.T) {
	b := newBench(t)
	b.run(0)
	b.answer(offer)
	for range 4 {
		b.run(time.Hour)
	}
	if want := []dhcpv4.MessageType{discover, request, request, request, discover}; !slices.Equal(b.kinds(), want) {
		t.Fatalf("sent %v, want %v", b.kinds(), want)
	}
	if err := (&Error{Observed: b.x.observed}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "192.0.2.1 offered 192.0.2.10 but did not confirm it") {
		t.Errorf("error: %v", err)
	}
	// The lease counts from the first request.
	b.answer(offer)
	b.run(time.Hour)
	first := b.now
	b.run(time.Hour)
	b.answer(yes)
	if l := b.x.lease(at(0)); l.Obtained != at(0).add(first) {
		t.Errorf("obtained at %+v, want %+v", l.Obtained, at(0).add(first))
	}
}

// An address that somebody uses is declined and not accepted again.
func TestInUse(t *testing.T) {
	b := newBench(t)
	b.x.requestedAddr = mustAddr("192.0.2.10")
	b.run(0)
	b.answer(offer)
	b.run(0)
	b.answer(yes)
	m := b.x.declineInUse(b.now, link.MAC{2, 0, 0, 0, 0, 9})
	if m.MessageType() != decline || !m.RequestedIPAddress().Equal(net.IP{192, 0, 2, 10}) || !m.ServerIdentifier().Equal(net.IP{192, 0, 2, 1}) || m.ClientIPAddr != nil ||
		m.Options.Has(dhcpv4.OptionParameterRequestList) {
		t.Errorf("%s", m.Summary())
	}
	b.run(0)
	if d := b.last(discover); d.Options.Has(dhcpv4.OptionRequestedIPAddress) {
		t.Error("the address is requested again")
	}
	b.answer(offer)
	if b.x.phase != selecting {
		t.Error("the offer of the address is accepted")
	}
	if err := (&Error{Observed: b.x.observed}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "in use: 192.0.2.10 by 02:00:00:00:00:09") {
		t.Errorf("error: %v", err)
	}
	b.answer(offer, yiaddr(192, 0, 2, 11))
	b.run(0)
	b.answer(yes, yiaddr(192, 0, 2, 11))
	if !b.x.done() {
		t.Error("the offer of another address is ignored")
	}
}

// A confirmation of another address than the requested one is ignored.
func TestOtherConfirmed(t *testing.T) {
	b := newBench(t)
	b.run(0)
	b.answer(offer)
	b.run(0)
	b.answer(yes, yiaddr(192, 0, 2, 11))
	if b.x.done() {
		t.Error("the other address is accepted")
	}
	if err := (&Error{Observed: b.x.observed}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "192.0.2.1: confirmed 192.0.2.11 instead of 192.0.2.10") {
		t.Errorf("error: %v", err)
	}
	b.answer(yes)
	if !b.x.done() {
		t.Error("the requested address is not accepted")
	}
}

// unconfirmedLease is what a server may count as granted.
func TestUnconfirmedLease(t *testing.T) {
	b := newBench(t)
	claimed := func(when, want string) {
		t.Helper()
		got := ""
		if l := b.x.unconfirmedLease(); l != nil {
			got = l.Address.String() + " of " + l.Server.String() + " by " + l.NextHop.String()
			if l.Client.HostName != "web" || string(l.Client.ID) != "\x01\x02" {
				t.Errorf("%s: nothing is granted, got %+v", when, l)
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	const it = "192.0.2.10/24 of 192.0.2.1 by 02:00:00:00:00:77"
	b.run(0)
	claimed("waiting for offers", "")
	b.answer(offer)
	claimed("offered", "")
	b.run(0)
	claimed("requested", it)
	b.answer(no)
	claimed("forbidden", "")
	b.run(0)
	b.answer(offer)
	for range 4 { // requested three times, then all servers are asked
		b.run(time.Hour)
	}
	b.last(discover)
	claimed("perhaps granted", it)
	b.answer(offer)
	b.run(time.Hour)
	b.answer(yes)
	claimed("granted", it)
	if l := b.x.lease(at(0)); l.NextHop != hop {
		t.Errorf("next hop of the lease: %s", l.NextHop)
	}
	b.x.declineInUse(b.now, link.MAC{2, 0, 0, 0, 0, 9})
	claimed("declined", "")
}

// A renewal sends after 4, 8, 16 s, and leaves the lease as it is until a server answers.
func TestRenewal(t *testing.T) {
	l := hourly()
	l.Client, l.Address, l.Server = Client{ID: Identifier{1, 2}}, mustPrefix("192.0.2.10/24"), mustAddr("192.0.2.1")
	begin := func() *renewal {
		return &renewal{lease: l, attempt: attempt{
			requester: requester{client: l.Client, mac: link.MAC{2, 0, 0, 0, 0, 1}}, random: func() float64 { return 0.5 }, xid: dhcpv4.TransactionID{7}}}
	}
	e := begin()
	var at []time.Duration
	var q *dhcpv4.DHCPv4
	for now := time.Duration(0); now < 60*time.Second; now = e.next() {
		q = e.tick(now)
		at = append(at, now/time.Second)
	}
	if want := []time.Duration{0, 4, 12, 28}; !slices.Equal(at, want) {
		t.Errorf("sent at %v, want %v", at, want)
	}
	if q.MessageType() != request || !q.ClientIPAddr.Equal(net.IP{192, 0, 2, 10}) || q.IsBroadcast() ||
		q.Options.Has(dhcpv4.OptionRequestedIPAddress) || q.Options.Has(dhcpv4.OptionServerIdentifier) {
		t.Errorf("%s", q.Summary())
	}
	for name, c := range map[string]struct {
		change func(*dhcpv4.DHCPv4)
		done   bool
		nak    bool
	}{
		"granted":           {func(*dhcpv4.DHCPv4) {}, true, false},
		"another address":   {yiaddr(192, 0, 2, 11), false, false},
		"refused":           {with(dhcpv4.OptionDHCPMessageType, byte(no)), true, true},
		"an offer":          {with(dhcpv4.OptionDHCPMessageType, byte(offer)), false, false},
		"to another client": {with(dhcpv4.OptionClientIdentifier, 9, 9), false, false},
		"NAK of any server": {func(m *dhcpv4.DHCPv4) {
			with(dhcpv4.OptionDHCPMessageType, byte(no))(m)
			without(dhcpv4.OptionServerIdentifier)(m)
		}, true, true},
		"by another server":   {with(dhcpv4.OptionServerIdentifier, 192, 0, 2, 9), true, false},
		"of an absurd length": {with(dhcpv4.OptionIPAddressLeaseTime, 0, 0, 0, 1), false, false},
	} {
		e := begin()
		e.tick(0)
		m := ack()
		m.TransactionID, m.ClientHWAddr = e.xid, net.HardwareAddr(e.mac[:])
		c.change(m)
		e.receive(0, hop, m)
		if text := strings.Join(e.observed.Nak, ""); strings.Contains(text, "invalid") {
			t.Errorf("%s: refused by %s", name, text)
		}
		if c.done && !c.nak && e.terms.NextHop != hop {
			t.Errorf("%s: by %s", name, e.terms.NextHop)
		}
		if e.done() != c.done || (len(e.observed.Nak) > 0) != c.nak {
			t.Errorf("%s: over %t, %+v", name, e.done(), e.observed)
		}
	}
}

// A release names the client, the address and the server.
func TestRelease(t *testing.T) {
	a := requester{client: Client{ID: Identifier{1, 2}, HostName: "web"}, mac: link.MAC{2, 0, 0, 0, 0, 1}, broadcast: true}
	m := a.release(dhcpv4.TransactionID{7}, &Lease{Address: mustPrefix("192.0.2.10/24"), Server: mustAddr("192.0.2.1")})
	if m.MessageType() != dhcpv4.MessageTypeRelease || !m.ClientIPAddr.Equal(net.IP{192, 0, 2, 10}) || !m.ServerIdentifier().Equal(net.IP{192, 0, 2, 1}) ||
		string(m.Options.Get(dhcpv4.OptionClientIdentifier)) != "\x01\x02" || m.IsBroadcast() || m.Options.Has(dhcpv4.OptionHostName) {
		t.Errorf("%s", m.Summary())
	}
}

// FuzzExchange delivers arbitrary messages to an exchange.
func FuzzExchange(f *testing.F) {
	m := ack()
	m.TransactionID, m.ClientHWAddr = dhcpv4.TransactionID{0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 1}
	m.UpdateOption(dhcpv4.OptMessageType(offer))
	f.Add(m.ToBytes(), ack().ToBytes())
	f.Fuzz(func(t *testing.T, one, two []byte) {
		b := newBench(t)
		b.run(0)
		for _, bytes := range [][]byte{one, two} {
			if m, err := dhcpv4.FromBytes(bytes); err == nil {
				b.x.receive(b.now, hop, m)
				b.run(b.now)
			}
		}
		if b.x.done() && !isUnicast(b.x.lease(at(0)).Address.Addr()) {
			t.Errorf("%+v", b.x.terms)
		}
	})
}
