package named_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/networktest"

	"golang.org/x/sys/unix"
)

// needLargeSegments skips a test on kernels without large segments for IPv4.
func needLargeSegments(t *testing.T) {
	t.Helper()
	if segments(t, networktest.NewNS(t, "probe"), "lo")[1] == 0 {
		t.Skip("the kernel is older than 6.3: it has no gso_ipv4_max_size")
	}
}

// segments returns how large the segments are that a device sends undivided, of IPv6 and of IPv4.
func segments(t *testing.T, ns *netns.NS, device string) [2]uint32 {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(device)
	must(t, err)
	return [2]uint32{l.Attrs().GSOMaxSize, l.Attrs().GSOIPv4MaxSize}
}

// The host's ends of links, and bridges, have large segments; containers have them on internal networks,
// while they publish no port and have no rate, and where a network says so.
func TestLargeSegments(t *testing.T) {
	normal, large := [2]uint32{65536, 65536}, [2]uint32{link.MaxGSOSize, link.MaxGSOSize}
	ports := []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}
	for _, driver := range []string{named.Bridge, named.Routed} {
		for _, tt := range []struct {
			name       string
			spec       named.NetworkSpec
			connection named.Connection
			want       [2]uint32
		}{
			{"a way out", named.NetworkSpec{}, named.Connection{}, normal},
			{"a way out, chosen", named.NetworkSpec{LargeSegments: true}, named.Connection{Ports: ports}, large},
			{"internal", named.NetworkSpec{Internal: true}, named.Connection{}, large},
			{"internal, a port", named.NetworkSpec{Internal: true}, named.Connection{Ports: ports}, normal},
			{"internal, a rate", named.NetworkSpec{Internal: true}, named.Connection{RateBitsPerSec: 1e9}, normal},
		} {
			t.Run(driver+", "+tt.name, func(t *testing.T) {
				needLargeSegments(t)
				tb := newTestbed(t, "a")
				tt.spec.Name, tt.spec.Driver, tt.spec.Subnets = "web", driver, subnets(1)
				must(t, tb.create(tt.spec))
				must(t, ignore(tb.connect("web", "a", tt.connection)))
				if got := segments(t, tb.containers["a"], "eth0"); got != tt.want {
					t.Errorf("the container sends segments of %d bytes, want %d", got, tt.want)
				}
				h, err := link.Handle(tb.host)
				must(t, err)
				defer h.Close()
				all, err := h.LinkList()
				must(t, err)
				for _, l := range all {
					if name := l.Attrs().Name; strings.HasPrefix(name, "veth") || name == "cl-web" && driver == named.Bridge {
						if got := segments(t, tb.host, name); got != large {
							t.Errorf("%s of the host sends segments of %d bytes, want %d", name, got, large)
						}
					}
				}
			})
		}
	}
}

// A container of an internal network has normal segments while it publishes a port, also after it was
// restarted, and once the network is not internal any more.
func TestSegmentsFollowPorts(t *testing.T) {
	needLargeSegments(t)
	tb := newTestbed(t, "a")
	spec := named.NetworkSpec{Name: "web", Internal: true, Subnets: subnets(1)}
	must(t, tb.create(spec))
	must(t, ignore(tb.connect("web", "a", named.Connection{})))
	ports := []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}
	is := func(when string, want uint32) {
		t.Helper()
		if got := segments(t, tb.containers["a"], "eth0"); got != [2]uint32{want, want} {
			t.Errorf("%s, the container sends segments of %d bytes, want %d", when, got, want)
		}
	}
	is("at first", link.MaxGSOSize)
	must(t, tb.onHost(func() error { _, err := named.Publish(t.Context(), tb.cfg, "web", "a", ports); return err }))
	is("with a port", 65536)

	tb.startKeeperWith(func(k *named.Keeper) {
		all, err := tb.store.Attachments()
		must(t, err)
		must(t, attach.FitSegments(tb.store.Store, all[0], true)) // as package attach makes it again
		must(t, tb.onHost(func() error { k.Attached(t.Context(), all[0]); return nil }))
	})
	is("after a restart", 65536)

	must(t, tb.onHost(func() error { _, err := named.Unpublish(t.Context(), tb.cfg, "web", "a", nil); return err }))
	is("without the port", link.MaxGSOSize)
	spec.Internal = false
	must(t, tb.onHost(func() error { return named.Change(t.Context(), tb.cfg, spec) }))
	is("with a way out", 65536)
}

// Large segments pass from network to network, also those of IPv6 in packets of the full MTU, which
// kernels before 7.0 drop. The count of segments that were sent again shows that none are dropped.
func TestLargeSegmentsAreForwarded(t *testing.T) {
	needLargeSegments(t)
	for _, driver := range []string{named.Bridge, named.Routed} {
		t.Run(driver, func(t *testing.T) {
			tb := newTestbed(t, "a", "b")
			for i, name := range []string{"web", "db"} {
				spec := named.NetworkSpec{Name: name, Driver: driver, LargeSegments: true, Subnets: subnets(i + 1)}
				spec.Rules = [][]string{{"allow web to db"}, nil}[i]
				must(t, tb.create(spec))
				must(t, ignore(tb.connect(name, []string{"a", "b"}[i], named.Connection{})))
			}
			for _, to := range []string{"10.20.2.2", "fd00:2::2"} {
				sent, again := sendStream(t, tb.containers["a"], tb.containers["b"], to)
				if again*10 > sent {
					t.Errorf("to %s: of %d segments, %d were sent again", to, sent, again)
				}
			}
		})
	}
}

// sendStream sends 16 MiB by TCP. It returns how many segments were sent, and how many of them again.
func sendStream(t *testing.T, from, to *netns.NS, address string) (sent, again uint32) {
	t.Helper()
	var l net.Listener
	must(t, to.Do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(address, "5001")); return err }))
	defer l.Close()
	received := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- -1
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		received <- n
	}()
	var c net.Conn
	must(t, from.Do(func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second); return err }))
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	const size, times = 1 << 20, 16
	for range times {
		_, err := c.Write(make([]byte, size))
		must(t, err)
	}
	must(t, c.(*net.TCPConn).CloseWrite())
	if n := <-received; n != size*times {
		t.Fatalf("%d bytes arrived, want %d", n, size*times)
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	var info *unix.TCPInfo
	must(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	must(t, err)
	return info.Segs_out, info.Total_retrans
}

// Containers of an internal network reach each other, are reached at published ports by the outside and
// by networks that may, and reach those that they may. Anything else is refused at once. Their default
// route is that of another network, whichever they joined first.
func TestInternal(t *testing.T) {
	for _, driver := range []string{named.Bridge, named.Routed} {
		for _, first := range []string{"db", "web"} {
			t.Run(fmt.Sprintf("%s, %s first", driver, first), func(t *testing.T) {
				tb := newTestbed(t, "a", "b", "c", "d")
				before := tb.snapshot()
				must(t, tb.create(named.NetworkSpec{Name: "db", Driver: driver, Internal: true, Subnets: subnets(1), Rules: []string{"allow db to lan"}}))
				must(t, tb.create(named.NetworkSpec{Name: "web", Driver: driver, Subnets: subnets(2)}))
				must(t, tb.create(named.NetworkSpec{Name: "lan", Driver: driver, Subnets: subnets(3), Rules: []string{"allow lan to db"}}))
				second := map[string]string{"db": "web", "web": "db"}[first]
				port := map[string]named.Connection{"db": {Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}}}
				on := map[string]*named.Endpoint{} // a is on both
				for _, name := range []string{first, second} {
					e, err := tb.connect(name, "a", port[name])
					must(t, err)
					on[name] = e
				}
				a := on["db"].Addresses
				must(t, ignore(tb.connect("db", "b", named.Connection{})))
				must(t, ignore(tb.connect("web", "c", named.Connection{})))
				must(t, ignore(tb.connect("lan", "d", named.Connection{})))
				for name := range tb.containers {
					answer(t, tb.containers[name], 80)
				}
				answer(t, tb.outside, 80)
				for _, tt := range []struct {
					from     *netns.NS
					to, want string
				}{
					{tb.containers["b"], netip.AddrPortFrom(a[0], 80).String(), "10.20.1.3"},
					{tb.containers["b"], netip.AddrPortFrom(a[1], 80).String(), "fd00:1::3"},
					{tb.outside, "198.51.100.1:8080", "198.51.100.2"},
					{tb.containers["a"], "198.51.100.2:80", "198.51.100.1"},
					{tb.containers["d"], "10.20.1.3:80", "10.20.3.2"},
					{tb.containers["d"], "[fd00:1::3]:80", "fd00:3::2"},
					{tb.containers["b"], "10.20.3.2:80", "10.20.1.3"},
					{tb.containers["b"], "[fd00:3::2]:80", "fd00:1::3"},
				} {
					if got := ask(tt.from, tt.to); got != tt.want {
						t.Errorf("%s asks %s: the server sees %q, want %q", tt.from, tt.to, got, tt.want)
					}
				}
				// outside, and a container of another network
				for to, want := range map[string]syscall.Errno{"198.51.100.2:80": unix.EHOSTUNREACH, "10.20.2.3:80": unix.EHOSTUNREACH, "[fd00:2::3]:80": unix.EACCES} {
					err := tb.containers["b"].Do(func() error {
						c, err := net.DialTimeout("tcp", to, 10*time.Second)
						if err == nil {
							c.Close()
						}
						return err
					})
					if !errors.Is(err, want) {
						t.Errorf("b dials %s: %v, want %v", to, err, want)
					}
				}
				tb.check()
				for _, name := range []string{"db", "web", "lan"} {
					must(t, tb.remove(name, true))
				}
				tb.is("after all", before)
			})
		}
	}
}
