package dhcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/network/dhcp"
	"cleat/network/dhcp/dhcptest"
	"cleat/network/segment"
	"cleat/network/segment/segmenttest"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

var must = segmenttest.Must

// serve starts a server on a link, and adds the server's address to the link.
func serve(t *testing.T, l *link.Link, lifetime time.Duration, options ...dhcpv4.Modifier) *dhcptest.Server {
	t.Helper()
	must(t, l.AddAddr(dhcptest.Addr()))
	s := &dhcptest.Server{Lifetime: lifetime, Options: options}
	must(t, l.NS().Do(func() error {
		stop, err := s.Listen(l.Name())
		if err == nil {
			t.Cleanup(stop)
		}
		return err
	}))
	return s
}

// client returns the identity of a container.
func client(name string) dhcp.Client {
	return dhcp.Client{ID: dhcp.IdentifierOf(name, "eth0"), HostName: name}
}

// onEthernet runs f with a container's link of each kind: on the host's eth0, or a port
// of the switch.
func onEthernet(t *testing.T, f func(t *testing.T, b *segmenttest.Network, l *link.Link)) {
	for name, spec := range map[string]link.Spec{"macvlan": segmenttest.Macvlan(), "ipvlan": segmenttest.IPvlan(), "veth": nil} {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			if spec == nil {
				f(t, b, b.Plug(t, segmenttest.NewNS(t, "web"), "web", link.MAC{}))
				return
			}
			f(t, b, b.Container(t, "web", spec))
		})
	}
}

// A lease is acquired, used, renewed and rebound by another process, and released.
func TestLease(t *testing.T) {
	onEthernet(t, func(t *testing.T, b *segmenttest.Network, l *link.Link) {
		s := serve(t, b.OutsideLink, time.Hour, dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 0x78})))
		at := segmenttest.At(l, b.Uplink)
		lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
		must(t, err)
		if lease.Address != netip.MustParsePrefix("192.0.2.10/24") || len(lease.Routes) != 1 || lease.Routes[0].Via != dhcptest.Addr().Addr() || lease.MTU != 1400 || lease.Expires.Sub(lease.Obtained.Wall) != time.Hour {
			t.Errorf("%+v", lease)
		}
		f, err := segment.Inspect(at)
		must(t, err)
		s.Do(func() {
			if s.Last.HostName() != "web" || s.Last.IsBroadcast() != f.IPvlan() {
				t.Errorf("message: %s", s.Last.Summary())
			}
		})

		if err := dhcp.Renew(t.Context(), at, lease); !errors.Is(err, dhcp.ErrNoAddress) {
			t.Errorf("renewed without the address: %v", err)
		}
		must(t, l.AddAddr(lease.Address))
		lease = handOver(t, lease)
		for name, extend := range map[string]func(context.Context, segment.Link, *dhcp.Lease) error{"renew": dhcp.Renew, "rebind": dhcp.Rebind} {
			before := *lease
			s.Do(func() { s.Lifetime = 2 * time.Hour })
			if err := extend(t.Context(), at, lease); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if lease.Expires.Sub(lease.Obtained.Wall) != 2*time.Hour || lease.Obtained == before.Obtained || lease.Address != before.Address || lease.Client.HostName != "web" {
				t.Errorf("%s: from %+v to %+v", name, before, lease)
			}
			s.Do(func() {
				if !s.Last.ClientIPAddr.Equal(before.Address.Addr().AsSlice()) {
					t.Errorf("%s: message: %s", name, s.Last.Summary())
				}
			})
			lease = handOver(t, lease)
		}
		must(t, dhcp.Release(t.Context(), at, lease))
		must(t, l.Close()) // unsent messages would be lost
		segmenttest.Eventually(t, "the lease is released at the server", func() bool {
			return s.Leases() == 0
		})
	})
}

// handOver returns the lease as another process would read it.
func handOver(t *testing.T, l *dhcp.Lease) *dhcp.Lease {
	t.Helper()
	b, err := json.Marshal(l)
	must(t, err)
	var out dhcp.Lease
	must(t, json.Unmarshal(b, &out))
	return &out
}

// The server receives the release, although its Ethernet address must be resolved first
// and the link goes at once.
func TestReleaseIsSent(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segmenttest.At(l, b.Uplink)
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, err)
	must(t, l.AddAddr(lease.Address))
	must(t, dhcp.Release(t.Context(), at, lease))
	must(t, l.Close())
	segmenttest.Eventually(t, "the server receives the release", func() bool { return s.Received(dhcpv4.MessageTypeRelease) == 1 })
}

// A lease that was granted unnoticed is released from a link without an address, and to a
// server without a route.
func TestReleaseWithoutAddress(t *testing.T) {
	onEthernet(t, func(t *testing.T, b *segmenttest.Network, l *link.Link) {
		s := serve(t, b.OutsideLink, time.Hour)
		s.Do(func() { s.NoAck = true })
		at := segmenttest.At(l, b.Uplink)
		var kept []*dhcp.Lease
		asked := func() int { return s.Received(dhcpv4.MessageTypeRequest) }
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for s.Leases() == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		_, err := dhcp.Acquire(ctx, at, dhcp.Config{Client: client("web"), Save: func(l *dhcp.Lease) error {
			if asked() > 0 {
				t.Error("a request was sent before Save was called")
			}
			kept = append(kept, l)
			return nil
		}})
		if !errors.Is(err, context.Canceled) || len(kept) != 1 {
			t.Fatalf("%v, told %+v", err, kept)
		}
		// The message goes to the server's Ethernet address, which is known.
		deaf := map[string]string{"arp_ignore": "8", "drop_unicast_in_l2_multicast": "1"}
		for name, value := range deaf {
			must(t, b.Outside.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/"+name, []byte(value), 0) }))
			must(t, b.Outside.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/eth0/"+name, []byte(value), 0) }))
		}
		must(t, dhcp.Release(t.Context(), at, handOver(t, kept[0])))
		segmenttest.Eventually(t, "the lease is released at the server", func() bool { return s.Leases() == 0 })

		s.Do(func() { s.NoAck, s.Options = false, []dhcpv4.Modifier{dhcpv4.WithNetmask(net.CIDRMask(32, 32))} })
		lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
		must(t, err)
		must(t, l.AddAddr(lease.Address))
		must(t, dhcp.Release(t.Context(), at, lease))
		segmenttest.Eventually(t, "the lease is released at a server without a route", func() bool { return s.Leases() == 0 })
	})
}

// Nothing is requested that can't be saved.
func TestSaveFails(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	full := errors.New("disk full")
	if _, err := dhcp.Acquire(t.Context(), segmenttest.At(l, b.Uplink), dhcp.Config{Client: client("web"), Save: func(*dhcp.Lease) error { return full }}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if n := s.Received(dhcpv4.MessageTypeRequest); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A release that nobody can have received is an error.
func TestReleaseFails(t *testing.T) {
	b := segmenttest.New(t)
	serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segmenttest.At(l, b.Uplink)
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, err)
	must(t, l.AddAddr(lease.Address))
	must(t, b.OutsideLink.Down())
	if err := dhcp.Release(t.Context(), at, lease); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// Two clients on ipvlan, which have one Ethernet address, get leases of their own.
func TestOneMAC(t *testing.T) {
	b := segmenttest.New(t)
	serve(t, b.OutsideLink, time.Hour)
	addresses := make(chan netip.Prefix, 2)
	for _, name := range []string{"one", "two"} {
		at := segmenttest.At(b.Container(t, name, segmenttest.IPvlan()), b.Uplink)
		go func() {
			l, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client(name)})
			if err != nil {
				t.Error(err)
				l = &dhcp.Lease{}
			}
			addresses <- l.Address
		}()
	}
	if one, two := <-addresses, <-addresses; one == two {
		t.Errorf("both got %s", one)
	}
}

// Next is followed with a lease of 4 s: it is renewed, then its server falls silent, and
// it expires in time.
func TestShortLease(t *testing.T) {
	t.Parallel()
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, 4*time.Second)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segmenttest.At(l, b.Uplink)
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, err)
	must(t, l.AddAddr(lease.Address))
	var did []dhcp.Action
	for {
		now, err := dhcp.Now()
		must(t, err)
		step := lease.Next(now)
		if step.Delay > 0 {
			time.Sleep(step.Delay)
			continue
		}
		did = append(did, step.Action)
		if step.Action == dhcp.CallAcquire {
			break
		}
		if len(did) == 1 {
			must(t, dhcp.Renew(t.Context(), at, lease))
			s.Do(func() { s.Silent = true })
			continue
		}
		extend := map[dhcp.Action]func(context.Context, segment.Link, *dhcp.Lease) error{dhcp.CallRenew: dhcp.Renew, dhcp.CallRebind: dhcp.Rebind}[step.Action]
		if err := extend(t.Context(), at, lease); !errors.Is(err, dhcp.ErrNoAnswer) {
			t.Errorf("%s: %v", step.Action, err)
		}
	}
	if got := strings.Join(strs(did), " "); got != "renew renew rebind acquire" {
		t.Errorf("actions: %s", got)
	}
	if late := time.Since(lease.Expires); late < 0 || late > 2*time.Second {
		t.Errorf("it expired %s late", late)
	}
	if err := dhcp.Renew(t.Context(), at, lease); !errors.Is(err, dhcp.ErrExpired) {
		t.Errorf("renewed after that: %v", err)
	}
	s.Do(func() { s.Silent = false })
	again, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web"), Requested: lease.Address.Addr()})
	must(t, err)
	if again.Address != lease.Address {
		t.Errorf("it got %s, after %s", again.Address, lease.Address)
	}
}

func strs(all []dhcp.Action) (out []string) {
	for _, a := range all {
		out = append(out, string(a))
	}
	return out
}

// A server takes an address back.
func TestNAK(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segmenttest.At(l, b.Uplink)
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, err)
	must(t, l.AddAddr(lease.Address))
	s.Do(func() { s.SendNAK = true })
	for name, extend := range map[string]func(context.Context, segment.Link, *dhcp.Lease) error{"renew": dhcp.Renew, "rebind": dhcp.Rebind} {
		if err := extend(t.Context(), at, lease); !errors.Is(err, dhcp.ErrNak) || !strings.Contains(err.Error(), name+` lease on eth0: refused by 192.0.2.1 ("not here")`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web"), Timeout: 300 * time.Millisecond}); !errors.Is(err, dhcp.ErrNak) {
		t.Errorf("acquire: %v", err)
	}
}

// A lease that is obtained on a link that became ready late can be renewed at once: the lease
// begins when it was requested, not as much later as the link took.
func TestLateLink(t *testing.T) {
	b := segmenttest.New(t)
	serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segmenttest.At(l, b.Uplink)
	port, err := link.Find(b.Switch, "host")
	must(t, err)
	must(t, port.Down())
	segmenttest.Eventually(t, "the link has no carrier", func() bool {
		info, err := segment.Inspect(at)
		must(t, err)
		return !info.Running
	})
	up := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { up <- port.Up() })
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, errors.Join(<-up, err))
	must(t, l.AddAddr(lease.Address))
	must(t, dhcp.Renew(t.Context(), at, lease))
}

// A machine uses the address that the server grants.
func TestDecline(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	squatter := b.Plug(t, segmenttest.NewNS(t, "squatter"), "squatter", link.MAC{})
	must(t, squatter.AddAddr(netip.MustParsePrefix("192.0.2.10/24")))
	l := b.Container(t, "web", segmenttest.Macvlan())
	var told []string
	lease, err := dhcp.Acquire(t.Context(), segmenttest.At(l, b.Uplink), dhcp.Config{Client: client("web"), Save: func(l *dhcp.Lease) error {
		text := "nothing"
		if l != nil {
			text = fmt.Sprintf("%s %t", l.Address.Addr(), !l.Expires.IsZero())
		}
		told = append(told, text)
		return nil
	}})
	must(t, err)
	if got := strings.Join(told, ", "); got != "192.0.2.10 false, nothing, 192.0.2.11 false, 192.0.2.11 true" {
		t.Errorf("saved: %s", got)
	}
	if lease.Address.Addr() != netip.MustParseAddr("192.0.2.11") || s.Received(dhcpv4.MessageTypeDecline) != 1 {
		t.Errorf("it got %s, after %d were declined", lease.Address, s.Received(dhcpv4.MessageTypeDecline))
	}
}

// Without a server the error says what was observed.
func TestNoServer(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segmenttest.At(l, b.Uplink)
	_, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Timeout: 100 * time.Millisecond})
	var e *dhcp.Error
	if !errors.Is(err, dhcp.ErrNoAnswer) || !errors.As(err, &e) || e.Observed.Sent != 1 || !strings.Contains(err.Error(), "acquire lease on eth0: no DHCP server answered within ") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dhcp.Acquire(ctx, at, dhcp.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: dhcp.Client{HostName: "a b"}}); !errors.Is(err, dhcp.ErrClient) {
		t.Errorf("with an invalid name: %v", err)
	}
	must(t, l.Down())
	if _, err := dhcp.Acquire(t.Context(), at, dhcp.Config{}); !errors.Is(err, segment.ErrDown) {
		t.Errorf("down: %v", err)
	}
	lo, err := link.Find(l.NS(), "lo")
	must(t, err)
	if _, err := dhcp.Acquire(t.Context(), segmenttest.At(lo, nil), dhcp.Config{}); !errors.Is(err, dhcp.ErrNotApplicable) {
		t.Errorf("loopback: %v", err)
	}
}

// The link goes down while an answer is awaited.
func TestLinkGoesDown(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	s.Do(func() { s.Silent = true })
	l := b.Container(t, "web", segmenttest.Macvlan())
	done := make(chan error, 1)
	go func() {
		_, err := dhcp.Acquire(t.Context(), segmenttest.At(l, b.Uplink), dhcp.Config{Timeout: time.Hour})
		done <- err
	}()
	segmenttest.Eventually(t, "a message is sent", func() bool { return s.Received(dhcpv4.MessageTypeDiscover) > 0 })
	must(t, l.Down())
	if err := <-done; !errors.Is(err, segment.ErrDown) {
		t.Errorf("got %v", err)
	}
}
