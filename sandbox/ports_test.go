package sandbox_test

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"cleat/sandbox"
)

// served is a network that runs a command.
type served struct {
	*sandbox.Network
	*started
}

// serveIn starts a guest that says "ready".
func serveIn(t *testing.T, cfg sandbox.Config, name string, args ...string) served {
	t.Helper()
	n := newNetwork(t, cfg)
	return served{n, start(t, n.Exec, name, args...)}
}

// askUntil asks until there is an answer: what the kernel or a poller does a
// moment later is waited for.
func askUntil(t *testing.T, network, addr string) string {
	t.Helper()
	ctx := patience(t)
	for ctx.Err() == nil {
		if said, err := askFor(ctx, network, addr, time.Second); err == nil {
			return said
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s %s: no answer", network, addr)
	return ""
}

func askFor(ctx context.Context, network, addr string, patience time.Duration) (string, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("hello")); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// freePort is a port of the lab that nobody has.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func to(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }

func TestForwards(t *testing.T) {
	world(t)
	tests := []struct {
		proto  sandbox.Protocol
		listen string
		client string // as the guest sees it
	}{
		{sandbox.TCP, outside4, outside4},
		{sandbox.TCP, "127.0.0.1", "10.0.2.2"}, // loopback would mean the guest itself
		{sandbox.UDP, outside4, outside4},
	}
	for _, tt := range tests {
		name := map[sandbox.Protocol]string{sandbox.TCP: "tcp", sandbox.UDP: "udp"}[tt.proto]
		t.Run(name+" "+tt.listen, func(t *testing.T) {
			port := freePort(t)
			listen := netip.AddrPortFrom(netip.MustParseAddr(tt.listen), port)
			s := serveIn(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: tt.proto, Listen: listen, To: to(80)}}}, "serve", name+"/:80")
			if got, want := askUntil(t, name, listen.String()), name+" from "+tt.client; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if err := <-s.ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestForwardWhileRunning(t *testing.T) {
	world(t)
	s := serveIn(t, sandbox.Config{}, "serve", "tcp/:80")
	f := sandbox.Forward{Protocol: sandbox.TCP, Listen: netip.AddrPortFrom(netip.MustParseAddr(outside4), 0), To: to(80)}
	at, err := s.Forward(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Listen = at
	if all := s.Forwards(); len(all) != 1 || all[0] != f {
		t.Errorf("forwards %v", all)
	}
	if err := s.Unforward(f); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", at.String()); err == nil {
		t.Error("the port is still open")
	}
	if at, err = s.Forward(f); err != nil {
		t.Fatal(err)
	}
	if got := askUntil(t, "tcp", at.String()); got != "tcp from "+outside4 {
		t.Errorf("got %q", got)
	}
}

func TestAutoForward(t *testing.T) {
	world(t)
	port, private, left := freePort(t), freePort(t), freePort(t)
	p := func(port uint16) string { return strconv.Itoa(int(port)) }
	s := serveIn(t, sandbox.Config{AutoForward: []sandbox.AutoForward{{TCP: true, UDP: true, Except: []sandbox.PortRange{{First: left, Last: left}}}}},
		"serve", "tcp/:"+p(port), "tcp/127.0.0.1:"+p(private), "tcp/:"+p(left), "udp/:5353")
	if got := askUntil(t, "udp", outside4+":5353"); got != "udp from "+outside4 {
		t.Errorf("got %q", got)
	}
	if got := askUntil(t, "tcp", outside4+":"+p(port)); got != "tcp from "+outside4 {
		t.Errorf("got %q", got)
	}
	// One look later than those that are there.
	for _, port := range []uint16{private, left} {
		if _, err := net.Dial("tcp", outside4+":"+p(port)); err == nil {
			t.Errorf("port %d is open", port)
		}
	}
	// Its listener is gone, and so is the forward.
	for ctx := patience(t); len(s.Forwards()) > 0; time.Sleep(10 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("still open: %v", s.Forwards())
		}
	}
}

func TestOutward(t *testing.T) {
	world(t)
	four, six := answerTCP(t, "127.0.0.1", "four", false), answerTCP(t, "::1", "six", false)
	udp := answerUDP(t, "127.0.0.1", "udp")
	cfg := sandbox.Config{ReverseForwards: []sandbox.ReverseForward{
		{Protocol: sandbox.TCP, Listen: to(80), To: to(four.Port())},
		{Protocol: sandbox.TCP, Listen: to(six.Port())},
		{Protocol: sandbox.UDP, Listen: to(53), To: to(udp.Port())},
	}}
	if got := run(t, cfg, "dial", "tcp", "127.0.0.1:80", at(six, "[::1]")); got != "four\nsix" {
		t.Errorf("got %q", got)
	}
	if got := run(t, cfg, "dial", "udp", "127.0.0.1:53", "127.0.0.1:53"); got != "udp\nudp" {
		t.Errorf("got %q", got)
	}
}

func TestOutwardManyBytes(t *testing.T) {
	world(t)
	server := answerTCP(t, "127.0.0.1", "", true)
	cfg := sandbox.Config{ReverseForwards: []sandbox.ReverseForward{{Protocol: sandbox.TCP, Listen: to(server.Port())}}}
	if got := run(t, cfg, "echo", server.String()); got != "same" {
		t.Errorf("got %q", got)
	}
}

func TestAutoOutward(t *testing.T) {
	world(t)
	server := answerTCP(t, "127.0.0.1", "found", false)
	n := newNetwork(t, sandbox.Config{AutoReverseForward: []sandbox.AutoForward{{TCP: true}}})
	cmd, out := guest(patience(t), "persist", server.String())
	if err := n.Exec(patience(t), cmd); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out.String() != "found\n" {
		t.Errorf("got %q", out)
	}
}

func TestPortsThatCannotBeHad(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "", false)
	cfg := sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: server, To: to(80)}}}
	cmd, _ := guest(patience(t), "fds")
	if err := newNetwork(t, cfg).Exec(patience(t), cmd); err == nil {
		t.Error("a port that is in use was forwarded")
	}
	if cmd.ProcessState == nil {
		t.Error("the command was not waited for")
	}
}
