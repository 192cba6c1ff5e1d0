package names

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/dns"
	"cleat/internal/localsock"
	"cleat/lab"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
)

const (
	gateway  = "127.0.0.11:53" // where servers under test listen
	resolver = "127.0.0.53:53" // where the host's resolver listens
)

// start runs a server in this process, unsealed, and returns a client of it. The host's
// resolv.conf has the given content.
func start(t *testing.T, resolvConf string) (*Client, string) {
	t.Helper()
	dir := t.TempDir()
	cfg := Config{Path: filepath.Join(dir, "names.socket"), ResolvConf: filepath.Join(dir, "resolv.conf")}
	if err := os.WriteFile(cfg.ResolvConf, []byte(resolvConf), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := localsock.ListenFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.serveControl(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		s.close()
	})
	return dial(t, cfg.Path), cfg.Path
}

func dial(t *testing.T, path string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// needLoopback skips the test outside a lab, and brings the lab's loopback device up.
func needLoopback(t *testing.T) {
	t.Helper()
	lab.Need(t)
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serveAt opens sockets and passes them to the server.
func serveAt(t *testing.T, c *Client, at string, s Socket) {
	t.Helper()
	udp, tcp, err := Open(netip.MustParseAddrPort(at))
	must(t, err)
	defer udp.Close()
	defer tcp.Close()
	must(t, c.Serve(t.Context(), s, udp, tcp))
}

// dialTo connects to a server. Its reads and writes have 10 s.
func dialTo(t testing.TB, network, at string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, at)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	return c
}

// lookUp sends a query over UDP and returns the answer as text.
func lookUp(t testing.TB, at, name string, typ dnsmessage.Type) string {
	t.Helper()
	return show(queryOn(t, dialTo(t, "udp", at), name, typ))
}

func queryOn(t testing.TB, c net.Conn, name string, typ dnsmessage.Type) dnsmessage.Message {
	t.Helper()
	_, err := c.Write(ask(t, name, typ))
	must(t, err)
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	must(t, err)
	return unpack(t, buf[:n])
}

// onStream prefixes messages with their lengths.
func onStream(messages ...[]byte) (out []byte) {
	for _, m := range messages {
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(m))), m...)
	}
	return out
}

func readAnswer(t testing.TB, in io.Reader) dnsmessage.Message {
	t.Helper()
	msg, err := dns.ReadMessage(in, maxMessage)
	must(t, err)
	return unpack(t, msg)
}

// upstream is a resolver of the host. It knows *.example.
type upstream struct {
	asked atomic.Int64
	block chan struct{} // while open, slow.example gets no answer
}

// startUpstream starts a resolver at an address, over UDP and TCP.
func startUpstream(t *testing.T, at string) *upstream {
	t.Helper()
	u := &upstream{block: make(chan struct{})}
	udp, tcp, err := Open(netip.MustParseAddrPort(at))
	must(t, err)
	defer udp.Close()
	defer tcp.Close()
	p, err := net.FilePacketConn(udp)
	must(t, err)
	l, err := net.FileListener(tcp)
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			msg := append([]byte{}, buf[:n]...)
			wg.Go(func() { _, _ = p.WriteTo(u.answer(msg), from) })
		}
	})
	wg.Go(func() {
		_ = localsock.Serve(t.Context(), l, 100, func(c net.Conn) {
			in := bufio.NewReader(c)
			for {
				msg, err := dns.ReadMessage(in, maxQuery)
				if err != nil {
					return
				}
				if _, err := c.Write(onStream(u.answer(msg))); err != nil {
					return
				}
			}
		})
	})
	t.Cleanup(func() {
		u.unblock()
		p.Close()
		l.Close()
		wg.Wait()
	})
	return u
}

func (u *upstream) unblock() {
	select {
	case <-u.block:
	default:
		close(u.block)
	}
}

func (u *upstream) answer(msg []byte) []byte {
	u.asked.Add(1)
	var m dnsmessage.Message
	if m.Unpack(msg) != nil {
		return nil
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	q := m.Questions[0]
	name := strings.ToLower(q.Name.String())
	if name == "slow.example." {
		<-u.block
	}
	switch {
	case strings.HasSuffix(name, "example.") && q.Type == dnsmessage.TypeA || name == "nas.":
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 300}
		m.Answers = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.AResource{A: [4]byte{203, 0, 113, 1}}}}
	case !strings.HasSuffix(name, "example."):
		m.RCode = dnsmessage.RCodeNameError
	}
	out, _ := m.Pack()
	return out
}
