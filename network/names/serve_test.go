package names

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/internal/localsock"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

func TestServe(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
	if got := lookUp(t, gateway, "web", dnsmessage.TypeA); got != "Success, 192.0.2.10" {
		t.Error(got)
	}
	tcp := dialTo(t, "tcp", gateway)
	_, err := tcp.Write(onStream(ask(t, "web", dnsmessage.TypeA)))
	must(t, err)
	if got := show(readAnswer(t, tcp)); got != "Success, 192.0.2.10" {
		t.Error(got)
	}

	// A change is in force when its call returns.
	for i := range 100 {
		name := fmt.Sprint("c", i)
		must(t, c.Set(t.Context(), "shop", Change{Set: []Endpoint{{Name: name, Addrs: addrs("192.0.2.30")}}}))
		if got := lookUp(t, gateway, name, dnsmessage.TypeA); got != "Success, 192.0.2.30" {
			t.Errorf("%s: %s", name, got)
		}
		must(t, c.Set(t.Context(), "SHOP", Change{Delete: []string{name}}))
		if got := lookUp(t, gateway, name, dnsmessage.TypeA); !strings.HasPrefix(got, "NameError") {
			t.Errorf("%s: %s", name, got)
		}
	}

	// Sockets with the same ID take the place of the others, whose address is free.
	serveAt(t, c, "127.0.0.12:53", Socket{ID: "gw", Networks: []string{"shop"}})
	serveAt(t, c, gateway, Socket{ID: "other", Networks: []string{"shop"}})
	must(t, c.Stop(t.Context(), "other"))
	serveAt(t, c, gateway, Socket{ID: "other", Networks: []string{"shop"}})
	for _, at := range []string{gateway, "127.0.0.12:53"} {
		if got := lookUp(t, at, "web", dnsmessage.TypeA); got != "Success, 192.0.2.10" {
			t.Error(at, got)
		}
	}
	must(t, c.Drop(t.Context(), "shop"))
	must(t, c.Drop(t.Context(), "shop"))
	state, err := c.State(t.Context())
	must(t, err)
	if len(state.Sockets) > 0 || len(state.Networks) > 0 {
		t.Errorf("after the last network was dropped: %+v", state)
	}
	udp, tcpFile, err := Open(netip.MustParseAddrPort(gateway))
	must(t, err)
	udp.Close()
	tcpFile.Close()
}

// Queries that arrived before the server took the socket are answered, however many there are.
func TestServeBacklog(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	udp, tcp, err := Open(netip.MustParseAddrPort(gateway))
	must(t, err)
	defer udp.Close()
	defer tcp.Close()
	conn := dialTo(t, "udp", gateway)
	const queries = 3*batchSize + 5
	for range queries {
		_, err := conn.Write(ask(t, "web", dnsmessage.TypeA))
		must(t, err)
	}
	must(t, c.Serve(t.Context(), Socket{ID: "gw", Networks: []string{"shop"}}, udp, tcp))
	buf := make([]byte, 1500)
	for i := range queries {
		if _, err := conn.Read(buf); err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
}

// The address of a gateway may come later, or still be checked for duplicates.
func TestOpenWithoutAddress(t *testing.T) {
	needLoopback(t)
	for _, at := range []string{"192.0.2.77:53", "[2001:db8::77]:53"} {
		udp, tcp, err := Open(netip.MustParseAddrPort(at))
		if err != nil {
			t.Errorf("%s: %v", at, err)
			continue
		}
		udp.Close()
		tcp.Close()
	}
}

// A network that is dropped leaves no goroutine.
func TestDropEndsForwarder(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	_, err := c.State(t.Context()) // the controller is served
	must(t, err)
	before := runtime.NumGoroutine()
	for i := range 20 {
		must(t, c.Replace(t.Context(), Network{Name: fmt.Sprint("n", i)}))
	}
	for i := range 20 {
		must(t, c.Drop(t.Context(), fmt.Sprint("n", i)))
	}
	waitFor(t, "the end of all forwarders", func() bool { return runtime.NumGoroutine() <= before })
}

func TestIPv6Socket(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	serveAt(t, c, "[::1]:53", Socket{ID: "gw", Networks: []string{"shop"}})
	if got := lookUp(t, "[::1]:53", "web", dnsmessage.TypeAAAA); got != "Success, 2001:db8:1::10" {
		t.Error(got)
	}
}

// A socket that sees two networks loses the one that is dropped.
func TestDropOneOfTwo(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	must(t, c.Replace(t.Context(), office))
	serveAt(t, c, gateway, Socket{ID: "both", Networks: []string{"shop", "office"}})
	must(t, c.Drop(t.Context(), "shop"))
	for name, want := range map[string]string{"db": "NameError", "printer": "Success, 198.51.100.7"} {
		if got := lookUp(t, gateway, name, dnsmessage.TypeA); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// An update changes what a socket sees, and the socket stays open.
func TestUpdate(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	must(t, c.Replace(t.Context(), office))
	serveAt(t, c, gateway, Socket{ID: "c", Networks: []string{"shop"}})
	conn := dialTo(t, "udp", gateway)
	for _, tt := range []struct {
		socket Socket
		want   map[string]string
	}{
		{Socket{ID: "c", Networks: []string{"office", "shop"}},
			map[string]string{"printer": "Success, 198.51.100.7", "web": "Success, 198.51.100.8", "db": "Success, 192.0.2.20", "nosuch": "NameError", "www.example": "NameError"}},
		{Socket{ID: "c", Networks: []string{"office"}, OnlyOurs: true},
			map[string]string{"printer": "Success, 198.51.100.7", "db": "Refused", "nosuch": "Refused", "www.example": "Refused", "nosuch.office": "Refused", "localhost": "Success, 127.0.0.1", "nosuch.office.internal": "NameError, authority SOA of office.internal. for 0 s"}},
		{Socket{ID: "c", Networks: []string{"shop"}}, map[string]string{"printer": "NameError", "web": "Success, 192.0.2.10"}},
	} {
		must(t, c.Update(t.Context(), tt.socket))
		for name, want := range tt.want {
			if got := show(queryOn(t, conn, name, dnsmessage.TypeA)); got != want {
				t.Errorf("%+v: %s: got %s, want %s", tt.socket, name, got, want)
			}
		}
	}
	for _, bad := range []Socket{{ID: "nosuch", Networks: []string{"shop"}}, {ID: "c", Networks: []string{"nosuch"}}} {
		if err := c.Update(t.Context(), bad); !errors.Is(err, ErrNotFound) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// Queries on one connection are answered as their answers are known.
func TestPipelining(t *testing.T) {
	needLoopback(t)
	u := startUpstream(t, resolver)
	c, _ := start(t, "nameserver 127.0.0.53\noptions timeout:30\n")
	open := shop
	open.NoForward = false
	must(t, c.Replace(t.Context(), open))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
	conn := dialTo(t, "tcp", gateway)
	_, err := conn.Write(onStream(ask(t, "slow.example", dnsmessage.TypeA), ask(t, "web", dnsmessage.TypeA), ask(t, "db", dnsmessage.TypeA)))
	must(t, err)
	must(t, conn.(*net.TCPConn).CloseWrite())
	for _, want := range []string{"Success, 192.0.2.10", "Success, 192.0.2.20"} {
		if got := show(readAnswer(t, conn)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	u.unblock()
	if got := show(readAnswer(t, conn)); got != "Success, 203.0.113.1" {
		t.Error(got)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the last answer: %v", err)
	}
}

// A stream with nonsense ends. One client may not have all connections.
func TestStreamLimits(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
	for name, msg := range map[string][]byte{
		"too long":     {0xff, 0xff},
		"unanswerable": onStream([]byte("nonsense")),
	} {
		conn := dialTo(t, "tcp", gateway)
		_, err := conn.Write(msg)
		must(t, err)
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	q := onStream(ask(t, "web", dnsmessage.TypeA))
	for range maxStreamsPerClient {
		conn := dialTo(t, "tcp", gateway)
		_, err := conn.Write(q)
		must(t, err)
		readAnswer(t, conn)
	}
	refusedConn := dialTo(t, "tcp", gateway)
	if _, err := refusedConn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one too many: %v", err)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 99)}}
	other, err := d.DialContext(t.Context(), "tcp", gateway)
	must(t, err)
	defer other.Close()
	_, err = other.Write(q)
	must(t, err)
	readAnswer(t, other)
}

// Changes of all kinds under load: each query is answered, and rightly.
func TestChangesUnderLoad(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	must(t, c.Replace(t.Context(), office))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop", "office"}})
	stop := make(chan struct{})
	var load sync.WaitGroup
	var asked atomic.Int64
	for range 4 {
		conn := dialTo(t, "udp", gateway)
		must(t, conn.SetDeadline(time.Time{}))
		load.Go(func() {
			buf := make([]byte, 1500)
			q := ask(t, "web", dnsmessage.TypeA)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				binary.BigEndian.PutUint16(q, uint16(i))
				_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				_, err := conn.Write(q)
				n := 0
				if err == nil {
					n, err = conn.Read(buf)
				}
				if err != nil || binary.BigEndian.Uint16(buf) != uint16(i) || show(unpack(t, buf[:n])) != "Success, 192.0.2.10" {
					t.Errorf("query %d: %v", i, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	for i := range 300 {
		e := Endpoint{Name: fmt.Sprint("c", i%50), Aliases: []string{"all"}, Addrs: addrs("192.0.2.30")}
		must(t, c.Set(t.Context(), "shop", Change{Set: []Endpoint{e}, Delete: []string{fmt.Sprint("c", (i+25)%50)}}))
		switch i % 10 {
		case 3:
			must(t, c.Replace(t.Context(), shop))
		case 6:
			must(t, c.Drop(t.Context(), "office"))
		case 7:
			must(t, c.Replace(t.Context(), office))
		case 9:
			serveAt(t, c, "127.0.0.12:53", Socket{ID: "more", Networks: []string{"office"}})
			must(t, c.Stop(t.Context(), "more"))
		}
	}
	waitFor(t, "1,000 queries", func() bool { return asked.Load() > 1000 || t.Failed() })
	close(stop)
	load.Wait()
}

// A server that ends leaves no goroutine and no descriptor.
func TestNothingLeaks(t *testing.T) {
	needLoopback(t)
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	goroutines, open := runtime.NumGoroutine(), descriptors()
	t.Run("server", func(t *testing.T) {
		startUpstream(t, resolver)
		c, path := start(t, "nameserver 127.0.0.53\n")
		n := shop
		n.NoForward = false
		must(t, c.Replace(t.Context(), n))
		serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
		w, err := Watch(t.Context(), path)
		must(t, err)
		defer w.Close()
		for _, network := range []string{"udp", "tcp"} {
			exchange(t, network, "web", dnsmessage.TypeA)
		}
		conn := dialTo(t, "udp", gateway)
		_, err = conn.Write(ask(t, "slow.example", dnsmessage.TypeA)) // in progress at the end
		must(t, err)
		dialTo(t, "tcp", gateway)
		n.Upstream = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53")}
		must(t, c.Replace(t.Context(), n))
		// Descriptors that don't belong to a valid request are closed.
		half, err := localsock.DialFile(t.Context(), path)
		must(t, err)
		_, _, err = half.WriteMsgUnix([]byte(`{"version":1`), unix.UnixRights(0, 1), nil)
		must(t, err)
		half.Close()
		for _, ids := range [][]string{{""}, {"nosuch"}} {
			udp, tcp, err := Open(netip.MustParseAddrPort("127.0.0.12:53"))
			must(t, err)
			if err := c.Serve(t.Context(), Socket{ID: "x", Networks: ids}, udp, tcp); err == nil {
				t.Error("served a network that does not exist")
			}
			must(t, udp.Close())
			must(t, tcp.Close())
		}
	})
	waitFor(t, "the end of all goroutines and descriptors", func() bool {
		return runtime.NumGoroutine() <= goroutines && descriptors() <= open
	})
}

// Sockets of other kinds are refused.
func TestServeRefusesOtherSockets(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	udp, tcp, err := Open(netip.MustParseAddrPort(gateway))
	must(t, err)
	defer udp.Close()
	defer tcp.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	must(t, err)
	unixSocket, other := os.NewFile(uintptr(pair[0]), ""), os.NewFile(uintptr(pair[1]), "")
	defer unixSocket.Close()
	defer other.Close()
	file, err := os.Open(os.DevNull)
	must(t, err)
	defer file.Close()
	for name, files := range map[string][2]*os.File{
		"two of UDP": {udp, udp}, "two listeners": {tcp, tcp}, "a Unix socket": {unixSocket, tcp}, "a file": {udp, file},
	} {
		err := c.Serve(t.Context(), Socket{ID: "gw", Networks: []string{"shop"}}, files[0], files[1])
		var e *Error
		if !errors.As(err, &e) || e.Kind != KindRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Serve(t.Context(), Socket{ID: "gw", Networks: []string{"shop"}}, tcp, udp); err != nil {
		t.Errorf("in the other order: %v", err)
	}
}

func TestState(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), office))
	must(t, c.Replace(t.Context(), shop))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop", "office"}})
	conn := dialTo(t, "udp", gateway)
	for _, name := range []string{"web", "web", "nosuch", "idle"} {
		queryOn(t, conn, name, dnsmessage.TypeA)
	}
	queryOn(t, conn, "web", dnsmessage.TypeALL)
	_, err := conn.Write([]byte("nonsense"))
	must(t, err)
	exchange(t, "tcp", "web", dnsmessage.TypeA)
	want := []SocketState{{Socket: Socket{ID: "gw", Networks: []string{"shop", "office"}}, Addr: netip.MustParseAddrPort(gateway),
		Local: true, Cookie: ownCookie(), Answered: 3, Empty: 1, Unknown: 1, Refused: 1, Invalid: 1, Streams: 1}}
	var state State
	waitFor(t, "the counters", func() bool {
		state, err = c.State(t.Context())
		must(t, err)
		return state.Sockets[0].Invalid == 1 && state.Sockets[0].Answered == 3
	})
	if d := cmp.Diff(want, state.Sockets, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if n := state.Networks; len(n) != 2 || n[0].Name != "office" || n[1].EndpointCount != len(shop.Endpoints) || n[1].Domain != "shop" || n[1].Endpoints != nil {
		t.Errorf("networks %+v", n)
	}
	if state.PID != os.Getpid() || time.Since(state.Started) > time.Hour {
		t.Errorf("%+v", state)
	}
	n, err := c.Network(t.Context(), "SHOP")
	must(t, err)
	if len(n.Endpoints) != len(shop.Endpoints) || n.Endpoints[0].Aliases[0] != "front.end" || n.Subnets[0] != shop.Subnets[0] {
		t.Errorf("network %+v", n)
	}
	if _, err := c.Network(t.Context(), "nosuch"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown network: %v", err)
	}
}
