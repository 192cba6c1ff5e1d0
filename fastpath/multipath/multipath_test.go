package multipath_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/fastpath"
	"cleat/fastpath/multipath"
	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/link"
)

func TestMain(m *testing.M) {
	os.Exit(labtest.RunTests(m))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// end is one of two nodes, with a cable for each path.
type end struct {
	*lab.Node
	t       testing.TB
	side    int // 1 or 2
	tun     *link.Tun
	kernel  *multipath.Tunnel
	devices []int
	paths   []multipath.Path
}

// inner returns the address of a side in the tunnel.
func inner(side int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0xfd, 15: byte(side)})
	}
	return netip.AddrFrom4([4]byte{10, 9, 0, byte(side)})
}

func outer(path, side int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(4*path + side)})
}

// newEnds returns two ends that send to each other by paths.
func newEnds(t testing.TB, paths int) (ends [2]*end) {
	t.Helper()
	lab.Need(t)
	if !labtest.KernelAtLeast(t, 6, 6) {
		t.Skip("the kernel has no tcx")
	}
	for i := range ends {
		n, err := lab.NewNode(fmt.Sprintf("end%d", i+1))
		must(t, err)
		t.Cleanup(func() { n.Close() })
		must(t, n.Sysctl("net/ipv4/tcp_congestion_control", "reno"))
		ends[i] = &end{Node: n, t: t, side: i + 1}
	}
	for p := range paths {
		name := fmt.Sprintf("p%d", p)
		must(t, lab.Connect(lab.End{Node: ends[0].Node, Name: name}, lab.End{Node: ends[1].Node, Name: name}, lab.Cable{}))
	}
	for _, e := range ends {
		e.begin(paths)
	}
	return ends
}

func (e *end) begin(paths int) {
	e.t.Helper()
	var err error
	e.tun, err = link.OpenTun(e.NS, link.TunSpec{Attrs: link.Attrs{Name: "tunnel0", MTU: 1400}, VNetHdr: true})
	must(e.t, err)
	e.t.Cleanup(func() { e.tun.Close() })
	must(e.t, e.tun.OffloadAll())
	must(e.t, e.Address("tunnel0", netip.PrefixFrom(inner(e.side, false), 24), netip.PrefixFrom(inner(e.side, true), 64)))
	for p := range paths {
		name := fmt.Sprintf("p%d", p)
		must(e.t, e.Address(name, netip.PrefixFrom(outer(p, e.side), 30)))
		l, err := link.Find(e.NS, name)
		must(e.t, err)
		e.devices = append(e.devices, l.Index())
		at := func(side int) netip.AddrPort { return netip.AddrPortFrom(outer(p, side), 4754) }
		e.paths = append(e.paths, multipath.Path{ID: p, Device: l.Index(), Local: at(e.side), Remote: at(3 - e.side), Share: 64 << 10})
	}
	must(e.t, e.NS.Do(func() (err error) { e.kernel, err = multipath.New(e.tun.Link().Index()); return err }))
	e.t.Cleanup(func() { e.kernel.Close() })
	must(e.t, e.kernel.SetSources([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("fe80::/10")}))
	must(e.t, e.NS.Do(func() error { return e.receive(e.devices) }))
	must(e.t, e.kernel.Send(uint32(3-e.side), e.paths))
}

func (e *end) receive(devices []int) error {
	var remotes []multipath.Remote
	for _, p := range e.paths {
		remotes = append(remotes, multipath.Remote{From: p.Remote, Port: p.Local.Port()})
	}
	return e.kernel.Receive(uint32(e.side), devices, remotes)
}

// transfer sends bytes to and fro.
func transfer(t *testing.T, from, to *end, v6 bool, size int) {
	t.Helper()
	var l net.Listener
	must(t, to.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(inner(to.side, v6), 80).String())
		return err
	}))
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	var c net.Conn
	must(t, from.NS.Do(func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second); return err }))
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	go func() { c.Write(data); c.(*net.TCPConn).CloseWrite() }()
	back, err := io.ReadAll(c)
	must(t, err)
	if got, want := sha256.Sum256(back), sha256.Sum256(data); !bytes.Equal(got[:], want[:]) {
		t.Fatalf("%d bytes came back of %d, and they differ", len(back), len(data))
	}
}

// TestKernel loads the programs, or is told from which version of the kernel on it can.
func TestKernel(t *testing.T) {
	lab.Need(t)
	n, err := lab.NewNode("host")
	must(t, err)
	defer n.Close()
	must(t, n.NS.Do(func() error {
		kernel, err := multipath.New(1) // loopback
		if err == nil {
			return kernel.Close()
		}
		unsupported := (*fastpath.UnsupportedError)(nil)
		if labtest.KernelAtLeast(t, 6, 6) || !errors.As(err, &unsupported) || !strings.Contains(err.Error(), "6.6") {
			return err
		}
		return nil
	}))
}

// TestTransfer sends streams over one path and several. All paths carry their share, and nothing is missing.
func TestTransfer(t *testing.T) {
	for _, n := range []int{1, 2, 12} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("paths=%d,ipv6=%v", n, v6), func(t *testing.T) {
				ends := newEnds(t, n)
				const size = 50 << 20
				transfer(t, ends[0], ends[1], v6, size)
				sent, err := ends[0].kernel.Sent()
				must(t, err)
				got, err := ends[1].kernel.Received()
				must(t, err)
				for p := range n {
					if sent[p].Bytes < size/uint64(2*n) {
						t.Errorf("path %d has carried %d bytes", p, sent[p].Bytes)
					}
					// Two processors may send at the same time, in another order than they count.
					if got[p].Bytes != sent[p].Bytes || got[p].Lost != got[p].Late || got[p].Late > size/100 {
						t.Errorf("path %d: %+v of %+v arrived", p, got[p], sent[p])
					}
				}
			})
		}
	}
}

// TestCounts drops packets on their way, and sees them missing.
func TestCounts(t *testing.T) {
	ends := newEnds(t, 1)
	from, to := udpPair(t, ends)
	send := func(n int) {
		for range n {
			_, err := from.Write(make([]byte, 1000))
			must(t, err)
		}
	}
	send(10)
	must(t, ends[1].NS.Do(func() error { return ends[1].receive(nil) })) // they go to a socket that is not there
	send(5)
	must(t, ends[1].NS.Do(func() error { return ends[1].receive(ends[1].devices) }))
	send(10)
	to.SetReadDeadline(time.Now().Add(5 * time.Second))
	for i := range 20 {
		if _, err := to.Read(make([]byte, 2000)); err != nil {
			t.Fatalf("datagram %d: %v", i, err)
		}
	}
	got, err := ends[1].kernel.Received()
	must(t, err)
	if want := uint64(5 * 1028); got[0].Lost != want || got[0].Late != 0 {
		t.Errorf("%+v, want %d bytes lost", got[0], want)
	}
}

// TestRefused sends packets with another tag, from another port, and from an inner address that none may come from. None
// arrives.
func TestRefused(t *testing.T) {
	for name, change := range map[string]func(e *end){
		"another tag": func(e *end) { must(e.t, e.kernel.Send(7, e.paths)) },
		"another port": func(e *end) {
			paths := slices.Clone(e.paths)
			paths[0].Local = netip.AddrPortFrom(paths[0].Local.Addr(), 4755)
			must(e.t, e.kernel.Send(2, paths))
		},
		"another source": func(e *end) {
			must(e.t, e.Address("tunnel0", netip.MustParsePrefix("10.8.0.1/32")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ends := newEnds(t, 1)
			from, to := udpPair(t, ends)
			change(ends[0])
			if name == "another source" {
				from.Close()
				must(t, ends[0].NS.Do(func() (err error) {
					from, err = net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 8, 0, 1)}, to.LocalAddr().(*net.UDPAddr))
					return err
				}))
			}
			_, err := from.Write([]byte("x"))
			must(t, err)
			to.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			if n, err := to.Read(make([]byte, 10)); err == nil {
				t.Errorf("%d bytes arrived", n)
			}
		})
	}
}

// udpPair returns connected sockets of both ends, between which a datagram has arrived.
func udpPair(t *testing.T, ends [2]*end) (from, to *net.UDPConn) {
	t.Helper()
	must(t, ends[1].NS.Do(func() (err error) {
		to, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(inner(2, false), 53)))
		return err
	}))
	t.Cleanup(func() { to.Close() })
	must(t, ends[0].NS.Do(func() (err error) {
		from, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(inner(1, false), 0)), to.LocalAddr().(*net.UDPAddr))
		return err
	}))
	t.Cleanup(func() { from.Close() })
	for range 50 { // neighbours are not known at first
		_, err := from.Write([]byte("x"))
		must(t, err)
		to.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := to.Read(make([]byte, 10)); err == nil {
			return from, to
		}
	}
	t.Fatal("nothing arrives")
	return nil, nil
}
