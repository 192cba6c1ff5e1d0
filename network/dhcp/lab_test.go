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
	"cleat/network/announce"
	"cleat/network/dhcp"
	"cleat/network/dhcp/dhcptest"
	"cleat/network/segment"
	"cleat/network/segment/segmenttest"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

var must = segmenttest.Must

// serve starts a server on a link, which gets the server's address.
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

// client is that of a container.
func client(name string) dhcp.Client {
	return dhcp.Client{ID: dhcp.IdentifierOf(name, "eth0"), HostName: name}
}

// onEthernet makes a container's link of each kind: on the host's eth0, or a port of the
// switch.
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

// TestLease is a lease's life: got, used, renewed and rebound by another process, given back.
func TestLease(t *testing.T) {
	onEthernet(t, func(t *testing.T, b *segmenttest.Network, l *link.Link) {
		s := serve(t, b.OutsideLink, time.Hour, dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 0x78})))
		at := segment.Of(l, b.Uplink)
		lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web"), Check: announce.Fast()})
		must(t, err)
		gateway, _ := lease.Gateway()
		if lease.Address != netip.MustParsePrefix("192.0.2.10/24") || gateway != dhcptest.Addr().Addr() || lease.MTU != 1400 || lease.Expires.Sub(lease.Got.Wall) != time.Hour {
			t.Errorf("%+v", lease)
		}
		f, err := segment.Inspect(at)
		must(t, err)
		s.Do(func() {
			if s.Last.HostName() != "web" || s.Last.IsBroadcast() != f.IPvlan() {
				t.Errorf("it asked: %s", s.Last.Summary())
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
			if lease.Expires.Sub(lease.Got.Wall) != 2*time.Hour || lease.Got == before.Got || lease.Address != before.Address || lease.Client.HostName != "web" {
				t.Errorf("%s: it was %+v and is %+v", name, before, lease)
			}
			s.Do(func() {
				if !s.Last.ClientIPAddr.Equal(before.Address.Addr().AsSlice()) {
					t.Errorf("%s: it asked: %s", name, s.Last.Summary())
				}
			})
			lease = handOver(t, lease)
		}
		must(t, dhcp.Release(t.Context(), at, lease))
		must(t, l.Close()) // what had not been sent would be lost
		segmenttest.Eventually(t, "the server has it back", func() bool {
			return s.Leases() == 0
		})
	})
}

// handOver is the lease as another process would read it.
func handOver(t *testing.T, l *dhcp.Lease) *dhcp.Lease {
	t.Helper()
	b, err := json.Marshal(l)
	must(t, err)
	var out dhcp.Lease
	must(t, json.Unmarshal(b, &out))
	return &out
}

// TestReleaseIsHeard though the server's Ethernet address must be asked for first, and the
// link goes at once.
func TestReleaseIsHeard(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segment.Of(l, b.Uplink)
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, err)
	must(t, l.AddAddr(lease.Address))
	must(t, dhcp.Release(t.Context(), at, lease))
	must(t, l.Close())
	segmenttest.Eventually(t, "the server hears of it", func() bool { return s.Saw(dhcpv4.MessageTypeRelease) == 1 })
}

// TestReleaseWithoutAddress gives back what was granted and never heard of, from a link
// without an address, and what there is no route for.
func TestReleaseWithoutAddress(t *testing.T) {
	onEthernet(t, func(t *testing.T, b *segmenttest.Network, l *link.Link) {
		s := serve(t, b.OutsideLink, time.Hour)
		s.Do(func() { s.Unheard = true })
		at := segment.Of(l, b.Uplink)
		var kept []*dhcp.Lease
		asked := func() int { return s.Saw(dhcpv4.MessageTypeRequest) }
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for s.Leases() == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		_, err := dhcp.Acquire(ctx, at, dhcp.Config{Client: client("web"), Keep: func(l *dhcp.Lease) error {
			if asked() > 0 {
				t.Error("it was asked for before it was told")
			}
			kept = append(kept, l)
			return nil
		}})
		if !errors.Is(err, context.Canceled) || len(kept) != 1 {
			t.Fatalf("%v, told %+v", err, kept)
		}
		// It goes to the server's Ethernet address, which is known.
		deaf := map[string]string{"arp_ignore": "8", "drop_unicast_in_l2_multicast": "1"}
		for name, value := range deaf {
			must(t, b.Outside.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/"+name, []byte(value), 0) }))
			must(t, b.Outside.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/eth0/"+name, []byte(value), 0) }))
		}
		must(t, dhcp.Release(t.Context(), at, handOver(t, kept[0])))
		segmenttest.Eventually(t, "the server has it back", func() bool { return s.Leases() == 0 })

		s.Do(func() { s.Unheard, s.Options = false, []dhcpv4.Modifier{dhcpv4.WithNetmask(net.CIDRMask(32, 32))} })
		lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
		must(t, err)
		must(t, l.AddAddr(lease.Address))
		must(t, dhcp.Release(t.Context(), at, lease))
		segmenttest.Eventually(t, "the server, which there is no route to, has it back", func() bool { return s.Leases() == 0 })
	})
}

// TestNotKept asks for nothing that can't be written down.
func TestNotKept(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	full := errors.New("disk full")
	if _, err := dhcp.Acquire(t.Context(), segment.Of(l, b.Uplink), dhcp.Config{Client: client("web"), Keep: func(*dhcp.Lease) error { return full }}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if n := s.Saw(dhcpv4.MessageTypeRequest); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// TestReleaseToNobody says that nobody can have heard.
func TestReleaseToNobody(t *testing.T) {
	b := segmenttest.New(t)
	serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segment.Of(l, b.Uplink)
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, err)
	must(t, l.AddAddr(lease.Address))
	must(t, b.OutsideLink.Down())
	if err := dhcp.Release(t.Context(), at, lease); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestOneMAC gives two clients with one Ethernet address leases of their own.
func TestOneMAC(t *testing.T) {
	mac := link.MAC{2, 0, 0x5e, 0x10, 0, 1}
	for name, plug := range map[string]func(t *testing.T, b *segmenttest.Network, name string) segment.Link{
		"ipvlan": func(t *testing.T, b *segmenttest.Network, name string) segment.Link {
			return segment.Of(b.Container(t, name, segmenttest.IPvlan()), b.Uplink)
		},
		"ports of a switch": func(t *testing.T, b *segmenttest.Network, name string) segment.Link {
			return segment.Of(b.Plug(t, segmenttest.NewNS(t, name), name, mac), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			serve(t, b.OutsideLink, time.Hour)
			links := map[string]segment.Link{"one": plug(t, b, "one"), "two": plug(t, b, "two")}
			got := make(chan netip.Prefix, len(links))
			for name, at := range links {
				go func() {
					l, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client(name), Broadcast: true})
					if err != nil {
						t.Error(err)
						l = &dhcp.Lease{}
					}
					got <- l.Address
				}()
			}
			if one, two := <-got, <-got; one == two {
				t.Errorf("both got %s", one)
			}
		})
	}
}

// TestShortLease follows Next with a lease of 4 s: it is renewed, then its server falls
// silent, and it is over when it must be.
func TestShortLease(t *testing.T) {
	t.Parallel()
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, 4*time.Second)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segment.Of(l, b.Uplink)
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, err)
	must(t, l.AddAddr(lease.Address))
	var did []dhcp.Action
	for {
		now, err := dhcp.Now()
		must(t, err)
		step := lease.Next(now)
		if step.In > 0 {
			time.Sleep(step.In)
			continue
		}
		did = append(did, step.Action)
		if step.Action == dhcp.CallAcquire {
			break
		}
		if len(did) == 1 {
			must(t, dhcp.Renew(t.Context(), at, lease))
			s.Do(func() { s.Mute = true })
			continue
		}
		extend := map[dhcp.Action]func(context.Context, segment.Link, *dhcp.Lease) error{dhcp.CallRenew: dhcp.Renew, dhcp.CallRebind: dhcp.Rebind}[step.Action]
		if err := extend(t.Context(), at, lease); !errors.Is(err, dhcp.ErrNoAnswer) {
			t.Errorf("%s: %v", step.Action, err)
		}
	}
	if got := strings.Join(strs(did), " "); got != "renew renew rebind acquire" {
		t.Errorf("it did: %s", got)
	}
	if late := time.Since(lease.Expires); late < 0 || late > 2*time.Second {
		t.Errorf("it was over %s after it should", late)
	}
	if err := dhcp.Renew(t.Context(), at, lease); !errors.Is(err, dhcp.ErrExpired) {
		t.Errorf("renewed afterwards: %v", err)
	}
	s.Do(func() { s.Mute = false })
	again, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web"), Wish: lease.Address.Addr()})
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

// TestForbidden has a server take an address back.
func TestForbidden(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segment.Of(l, b.Uplink)
	lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web")})
	must(t, err)
	must(t, l.AddAddr(lease.Address))
	s.Do(func() { s.Forbid = true })
	for name, extend := range map[string]func(context.Context, segment.Link, *dhcp.Lease) error{"renew": dhcp.Renew, "rebind": dhcp.Rebind} {
		if err := extend(t.Context(), at, lease); !errors.Is(err, dhcp.ErrNak) || !strings.Contains(err.Error(), name+` lease on eth0: refused by 192.0.2.1 ("not here")`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: client("web"), Within: 300 * time.Millisecond}); !errors.Is(err, dhcp.ErrNak) {
		t.Errorf("acquire: %v", err)
	}
}

// TestDeclines has somebody use the address that the server gives away.
func TestDeclines(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	squatter := b.Plug(t, segmenttest.NewNS(t, "squatter"), "squatter", link.MAC{})
	must(t, squatter.AddAddr(netip.MustParsePrefix("192.0.2.10/24")))
	l := b.Container(t, "web", segmenttest.Macvlan())
	var told []string
	lease, err := dhcp.Acquire(t.Context(), segment.Of(l, b.Uplink), dhcp.Config{Client: client("web"), Check: announce.Fast(), Keep: func(l *dhcp.Lease) error {
		text := "nothing"
		if l != nil {
			text = fmt.Sprintf("%s %t", l.Address.Addr(), !l.Expires.IsZero())
		}
		told = append(told, text)
		return nil
	}})
	must(t, err)
	if got := strings.Join(told, ", "); got != "192.0.2.10 false, nothing, 192.0.2.11 false, 192.0.2.11 true" {
		t.Errorf("it told: %s", got)
	}
	if lease.Address.Addr() != netip.MustParseAddr("192.0.2.11") || s.Saw(dhcpv4.MessageTypeDecline) != 1 {
		t.Errorf("it got %s, after %d were declined", lease.Address, s.Saw(dhcpv4.MessageTypeDecline))
	}
}

// TestNoServer says what was seen.
func TestNoServer(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	at := segment.Of(l, b.Uplink)
	_, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Within: 100 * time.Millisecond})
	var e *dhcp.Error
	if !errors.Is(err, dhcp.ErrNoAnswer) || !errors.As(err, &e) || e.Seen.Sent != 1 || !strings.Contains(err.Error(), "acquire lease on eth0: no DHCP server answered in ") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dhcp.Acquire(ctx, at, dhcp.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := dhcp.Acquire(t.Context(), at, dhcp.Config{Client: dhcp.Client{HostName: "a b"}}); !errors.Is(err, dhcp.ErrClient) {
		t.Errorf("with a bad name: %v", err)
	}
	must(t, l.Down())
	if _, err := dhcp.Acquire(t.Context(), at, dhcp.Config{}); !errors.Is(err, segment.ErrDown) {
		t.Errorf("down: %v", err)
	}
	lo, err := link.Find(l.NS(), "lo")
	must(t, err)
	if _, err := dhcp.Acquire(t.Context(), segment.Of(lo, nil), dhcp.Config{}); !errors.Is(err, dhcp.ErrNotApplicable) {
		t.Errorf("loopback: %v", err)
	}
}

// TestLinkGoesDown while it waits.
func TestLinkGoesDown(t *testing.T) {
	b := segmenttest.New(t)
	s := serve(t, b.OutsideLink, time.Hour)
	s.Do(func() { s.Mute = true })
	l := b.Container(t, "web", segmenttest.Macvlan())
	done := make(chan error, 1)
	go func() {
		_, err := dhcp.Acquire(t.Context(), segment.Of(l, b.Uplink), dhcp.Config{Within: time.Hour})
		done <- err
	}()
	segmenttest.Eventually(t, "it has asked", func() bool { return s.Saw(dhcpv4.MessageTypeDiscover) > 0 })
	must(t, l.Down())
	if err := <-done; !errors.Is(err, segment.ErrDown) {
		t.Errorf("got %v", err)
	}
}
