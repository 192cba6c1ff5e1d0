package sandbox_test

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"cleat/sandbox"
)

// runningNetwork is a network with a running command.
type runningNetwork struct {
	*sandbox.Network
	*runningGuest
}

// startNetwork starts a guest that prints "ready".
func startNetwork(t *testing.T, cfg sandbox.Config, name string, args ...string) runningNetwork {
	t.Helper()
	n := newNetwork(t, cfg)
	return runningNetwork{n, startGuest(t, n.Exec, name, args...)}
}

// askUntilAnswered asks until a server answers. The kernel or a poller may need a moment.
func askUntilAnswered(t *testing.T, network, addr string) string {
	t.Helper()
	ctx := testContext(t)
	for ctx.Err() == nil {
		if output, err := askFor(ctx, network, addr, time.Second); err == nil {
			return output
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no answer from %s %s", network, addr)
	return ""
}

// askFor sends "hello" and returns the first answer.
func askFor(ctx context.Context, network, addr string, timeout time.Duration) (string, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte("hello")); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// freePort returns an unused port of the lab.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// toPort is the guest's port, at any address.
func toPort(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }

func TestForwards(t *testing.T) {
	fakeInternet(t)
	tests := []struct {
		proto  sandbox.Protocol
		listen string
		client string // as the guest sees it
	}{
		{sandbox.TCP, outside4, outside4},
		{sandbox.TCP, "127.0.0.1", "10.0.2.2"}, // the loopback address would be the guest's own
		{sandbox.UDP, outside4, outside4},
	}
	for _, tt := range tests {
		name := map[sandbox.Protocol]string{sandbox.TCP: "tcp", sandbox.UDP: "udp"}[tt.proto]
		t.Run(name+" "+tt.listen, func(t *testing.T) {
			port := freePort(t)
			listen := netip.AddrPortFrom(netip.MustParseAddr(tt.listen), port)
			s := startNetwork(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: tt.proto, Listen: listen, To: toPort(80)}}}, "serve", name+"/:80")
			if got, want := askUntilAnswered(t, name, listen.String()), name+" from "+tt.client; got != want {
				t.Errorf("the guest printed %q, want %q", got, want)
			}
			if err := <-s.result; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestForwardWhileRunning(t *testing.T) {
	fakeInternet(t)
	s := startNetwork(t, sandbox.Config{}, "serve", "tcp/:80")
	f := sandbox.Forward{Protocol: sandbox.TCP, Listen: netip.AddrPortFrom(netip.MustParseAddr(outside4), 0), To: toPort(80)}
	at, err := s.Forward(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Listen = at
	if all := s.Forwards(); len(all) != 1 || all[0] != f {
		t.Errorf("Forwards() = %v, want %v", all, f)
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
	if got := askUntilAnswered(t, "tcp", at.String()); got != "tcp from "+outside4 {
		t.Errorf("the guest printed %q", got)
	}
}

func TestAutoForward(t *testing.T) {
	fakeInternet(t)
	port, private, excepted := freePort(t), freePort(t), freePort(t)
	p := func(port uint16) string { return strconv.Itoa(int(port)) }
	s := startNetwork(t, sandbox.Config{AutoForward: []sandbox.AutoForward{{TCP: true, UDP: true, Except: []sandbox.PortRange{{First: excepted, Last: excepted}}}}},
		"serve", "tcp/:"+p(port), "tcp/127.0.0.1:"+p(private), "tcp/:"+p(excepted), "udp/:5353")
	if got := askUntilAnswered(t, "udp", outside4+":5353"); got != "udp from "+outside4 {
		t.Errorf("the guest printed %q", got)
	}
	if got := askUntilAnswered(t, "tcp", outside4+":"+p(port)); got != "tcp from "+outside4 {
		t.Errorf("the guest printed %q", got)
	}
	// The other ports were opened by a poll, which has excepted out these.
	for _, port := range []uint16{private, excepted} {
		if _, err := net.Dial("tcp", outside4+":"+p(port)); err == nil {
			t.Errorf("port %d is open", port)
		}
	}
	// The listener has ended, so its forward is closed.
	for ctx := testContext(t); len(s.Forwards()) > 0; time.Sleep(10 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("forwards are still open: %v", s.Forwards())
		}
	}
}

func TestReverseForwards(t *testing.T) {
	fakeInternet(t)
	four, six := serveTCP(t, "127.0.0.1", "four", false), serveTCP(t, "::1", "six", false)
	udp := serveUDP(t, "127.0.0.1", "udp")
	cfg := sandbox.Config{ReverseForwards: []sandbox.ReverseForward{
		{Protocol: sandbox.TCP, Listen: toPort(80), To: toPort(four.Port())},
		{Protocol: sandbox.TCP, Listen: toPort(six.Port())},
		{Protocol: sandbox.UDP, Listen: toPort(53), To: toPort(udp.Port())},
	}}
	if got := runGuest(t, cfg, "dial", "tcp", "127.0.0.1:80", withAddr(six, "[::1]")); got != "four\nsix" {
		t.Errorf("the guest printed %q", got)
	}
	if got := runGuest(t, cfg, "dial", "udp", "127.0.0.1:53", "127.0.0.1:53"); got != "udp\nudp" {
		t.Errorf("the guest printed %q", got)
	}
}

// The plan for the guest is one message, and has room for any number of ports.
func TestReverseForwardsOfManyPorts(t *testing.T) {
	var cfg sandbox.Config
	for port := uint16(1000); port < 20_000; port++ {
		cfg.ReverseForwards = append(cfg.ReverseForwards, sandbox.ReverseForward{Protocol: sandbox.TCP, Listen: toPort(port)})
	}
	if err := newNetwork(t, cfg).Wrap(exec.Command("true")); err != nil {
		t.Error(err)
	}
}

func TestReverseForwardManyBytes(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, "127.0.0.1", "", true)
	cfg := sandbox.Config{ReverseForwards: []sandbox.ReverseForward{{Protocol: sandbox.TCP, Listen: toPort(server.Port())}}}
	if got := runGuest(t, cfg, "echo", server.String()); got != "same" {
		t.Errorf("the guest printed %q", got)
	}
}

func TestAutoReverseForward(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, "127.0.0.1", "found", false)
	n := newNetwork(t, sandbox.Config{AutoReverseForward: []sandbox.AutoForward{{TCP: true}}})
	cmd, out := guest(testContext(t), "dial-until-answered", server.String())
	if err := n.Exec(testContext(t), cmd); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out.String() != "found\n" {
		t.Errorf("the guest printed %q", out)
	}
}

func TestForwardOfUsedPort(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "", false)
	cfg := sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: server, To: toPort(80)}}}
	cmd, _ := guest(testContext(t), "fds")
	if err := newNetwork(t, cfg).Exec(testContext(t), cmd); err == nil {
		t.Error("Exec succeeded with a forward of a used port")
	}
	if cmd.ProcessState == nil {
		t.Error("Exec did not wait for the command")
	}
}
