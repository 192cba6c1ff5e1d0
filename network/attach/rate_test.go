package attach_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"cleat/netns"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestRateHolds sends as fast as it can, both ways at once, and compares what
// arrives with the rate. Headers take 4 % of that.
func TestRateHolds(t *testing.T) {
	const rate = 5e6 // an emulated processor carries eight of them, a busy one too
	for _, tt := range []struct {
		kind, parent string
		needs        []string
	}{
		{"bridge", "br0", []string{"bridge", "ifb", "tbf"}},
		{"macvlan", "nic", []string{"macvlan", "ifb", "tbf"}},
		{"ipvlan", "nic", []string{"ipvlan", "ifb", "tbf"}},
		{"phys", "nic", []string{"ifb", "tbf"}},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			t.Parallel() // they wait for the clock
			need(t, tt.needs...)
			w := newWorld(t)
			other, address := w.outside, "198.51.100.9"
			wire := find(t, w.outside, "wire")
			if tt.kind == "bridge" {
				haveBridge(t, w, nil)
				other, wire, address = w.host, find(t, w.host, "br0"), "192.0.2.1"
			}
			ip := netip.MustParsePrefix(address + "/24")
			must(t, wire.AddAddr(ip))
			mine := netip.PrefixFrom(ip.Addr().Next(), 24)
			_, err := w.attach(attach.Spec{Kind: tt.kind, Parent: tt.parent, Addresses: []netip.Prefix{mine}, RateBitsPerSec: rate, CheckDuplicate: attach.CheckNone}, nil)
			must(t, err)
			var got [2]float64
			done := make(chan error, 2)
			for i, way := range []struct {
				from, to *netns.NS
				at       netip.Addr
			}{{other, w.web, mine.Addr()}, {w.web, other, ip.Addr()}} {
				go func() {
					var err error
					got[i], err = throughput(t.Context(), way.from, way.to, way.at)
					done <- err
				}()
			}
			must(t, errors.Join(<-done, <-done))
			for i, name := range []string{"inbound", "outbound"} {
				ratio := got[i] / rate
				t.Logf("%s: %.3f of the rate", name, ratio)
				if ratio < 0.7 || ratio > 1.1 {
					t.Errorf("%s: %.1f Mbit/s at a rate of %.0f", name, got[i]/1e6, rate/1e6)
				}
			}
		})
	}
}

// TestRateIsQuiet has the device that limits a link send nothing of its own: it would lose that.
func TestRateIsQuiet(t *testing.T) {
	for _, want := range []attach.Spec{{Kind: "bridge", Parent: "br0", RateBitsPerSec: 1e8}, {Kind: "macvlan", Parent: "nic", RateBitsPerSec: 1e8}} {
		t.Run(want.Kind, func(t *testing.T) {
			need(t, want.Kind, "ifb", "tbf")
			w := newWorld(t)
			ifbs := 0
			for _, ns := range []*netns.NS{w.host, w.web} {
				sysctl(t, ns, "net/ipv6/conf/default/addr_gen_mode", "0") // of the kernel's own
			}
			_, err := w.attach(want, nil)
			must(t, err)
			for _, ns := range []*netns.NS{w.host, w.web} {
				h := handle(t, ns)
				all, err := h.LinkList()
				must(t, err)
				for _, l := range all {
					if l.Type() != "ifb" {
						continue
					}
					ifbs++
					if has, err := h.AddrList(l, netlink.FAMILY_V6); err != nil || len(has) > 0 {
						t.Errorf("%s has %v, %v", l.Attrs().Name, has, err)
					}
				}
			}
			if ifbs != 1 {
				t.Errorf("%d devices limit it", ifbs)
			}
		})
	}
}

// TestRateCarriesAPacket has a limited link with a large MTU carry packets of that length,
// both ways.
func TestRateCarriesAPacket(t *testing.T) {
	need(t, "bridge", "ifb", "tbf")
	const mtu, headers = 40000, 20 + 8 // of IPv4 and UDP
	w := newWorld(t)
	_, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true, MTU: mtu, RateBitsPerSec: 1e8}, nil)
	must(t, err)
	for _, way := range []struct {
		name     string
		from, to *netns.NS
		at       string
	}{{"outbound", w.web, w.host, "192.0.2.1:0"}, {"inbound", w.host, w.web, "192.0.2.10:0"}} {
		var l net.PacketConn
		must(t, way.to.Do(func() (err error) {
			l, err = net.ListenPacket("udp", way.at)
			return err
		}))
		defer l.Close()
		must(t, way.from.Do(func() error {
			c, err := net.Dial("udp", l.LocalAddr().String())
			if err == nil {
				_, err = c.Write(make([]byte, mtu-headers))
				c.Close()
			}
			return err
		}))
		l.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, _, err := l.ReadFrom(make([]byte, mtu)); err != nil || n != mtu-headers {
			t.Errorf("%s: %d bytes arrive, %v", way.name, n, err)
		}
	}
}

// How long is sent, and how much of that is waited before it counts: the buckets are
// full at first.
const (
	rateFor    = 2500 * time.Millisecond
	rateSettle = 500 * time.Millisecond
)

// throughput is how many bits arrive in a second when one namespace sends to
// another's address.
func throughput(ctx context.Context, from, to *netns.NS, at netip.Addr) (float64, error) {
	var l net.Listener
	err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer l.Close()
	var c net.Conn
	d := net.Dialer{Timeout: 5 * time.Second, Control: cubic}
	err = from.Do(func() (err error) {
		c, err = d.DialContext(ctx, "tcp", l.Addr().String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	go io.Copy(c, endless{})
	in, err := l.Accept()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	in.SetReadDeadline(time.Now().Add(rateSettle))
	io.Copy(io.Discard, in)
	begun := time.Now()
	in.SetReadDeadline(begun.Add(rateFor - rateSettle))
	n, _ := io.Copy(io.Discard, in)
	return float64(n) * 8 / time.Since(begun).Seconds(), nil
}

// cubic has a socket send as most do, whatever this machine's default is.
func cubic(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	}), err)
}

// endless are zeros without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
