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

// TestRate sends as fast as possible in both directions at once, and compares what
// arrives with the rate. Headers take 4 % of it.
func TestRate(t *testing.T) {
	const rate = 5e6 // low enough for eight streams on an emulated or busy processor
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
			t.Parallel() // it mostly waits for the clock
			needKinds(t, tt.needs...)
			tb := newTestbed(t)
			other, address := tb.outside, "198.51.100.9"
			wire := find(t, tb.outside, "wire")
			if tt.kind == "bridge" {
				prepBridge(t, tb, nil)
				other, wire, address = tb.host, find(t, tb.host, "br0"), "192.0.2.1"
			}
			ip := netip.MustParsePrefix(address + "/24")
			must(t, wire.AddAddr(ip))
			mine := netip.PrefixFrom(ip.Addr().Next(), 24)
			_, err := tb.attach(attach.Spec{Kind: tt.kind, Parent: tt.parent, Addresses: []netip.Prefix{mine}, RateBitsPerSec: rate, CheckDuplicate: attach.CheckNone}, nil)
			must(t, err)
			var got [2]float64
			done := make(chan error, 2)
			for i, way := range []struct {
				from, to *netns.NS
				at       netip.Addr
			}{{other, tb.web, mine.Addr()}, {tb.web, other, ip.Addr()}} {
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
					t.Errorf("%s: %.1f Mbit/s, rate %.0f", name, got[i]/1e6, rate/1e6)
				}
			}
		})
	}
}

// TestRateDeviceSendsNothing checks that the IFB device that limits a link has no IPv6
// address: it would send neighbour discovery packets, which would be lost.
func TestRateDeviceSendsNothing(t *testing.T) {
	for _, spec := range []attach.Spec{{Kind: "bridge", Parent: "br0", RateBitsPerSec: 1e8}, {Kind: "macvlan", Parent: "nic", RateBitsPerSec: 1e8}} {
		t.Run(spec.Kind, func(t *testing.T) {
			needKinds(t, spec.Kind, "ifb", "tbf")
			tb := newTestbed(t)
			ifbs := 0
			for _, ns := range []*netns.NS{tb.host, tb.web} {
				sysctl(t, ns, "net/ipv6/conf/default/addr_gen_mode", "0") // IN6_ADDR_GEN_MODE_EUI64, the kernel's default
			}
			_, err := tb.attach(spec, nil)
			must(t, err)
			for _, ns := range []*netns.NS{tb.host, tb.web} {
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
				t.Errorf("%d IFB devices, want 1", ifbs)
			}
		})
	}
}

// TestRateLargePackets sends packets of the link's large MTU in both directions through a
// rate limit.
func TestRateLargePackets(t *testing.T) {
	needKinds(t, "bridge", "ifb", "tbf")
	const mtu, headers = 40000, 20 + 8 // IPv4, UDP
	tb := newTestbed(t)
	_, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true, MTU: mtu, RateBitsPerSec: 1e8}, nil)
	must(t, err)
	for _, way := range []struct {
		name     string
		from, to *netns.NS
		at       string
	}{{"outbound", tb.web, tb.host, "192.0.2.1:0"}, {"inbound", tb.host, tb.web, "192.0.2.10:0"}} {
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
			t.Errorf("%s: got %d bytes, %v", way.name, n, err)
		}
	}
}

// rateFor is how long throughput sends. It does not count the first rateSettle of it,
// because the token buckets are full at first.
const (
	rateFor    = 2500 * time.Millisecond
	rateSettle = 500 * time.Millisecond
)

// throughput sends from one namespace to an address in another, and returns how many bits
// arrive a second.
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
	d := net.Dialer{Timeout: 5 * time.Second, Control: setCubic}
	err = from.Do(func() (err error) {
		c, err = d.DialContext(ctx, "tcp", l.Addr().String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	go io.Copy(c, zeros{})
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

// setCubic selects the congestion control that most machines use, whatever this machine's
// default is.
func setCubic(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	}), err)
}

// zeros is an endless stream of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
