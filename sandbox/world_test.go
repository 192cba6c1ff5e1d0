package sandbox_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"cleat/lab/labtest"

	"golang.org/x/net/dns/dnsmessage"
)

// The world outside: addresses on the lab's loopback.
const (
	outside4 = "192.0.2.1"
	outside6 = "2001:db8::1"
)

// world makes the outside, in the lab.
func world(t *testing.T) {
	t.Helper()
	labtest.World(t, outside4, outside6)
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0); err != nil {
		t.Fatal(err)
	}
}

// answerTCP serves on a free port of an address: each client gets the text, and
// what it sends comes back after that if echo is set.
func answerTCP(t *testing.T, addr, text string, echo bool) netip.AddrPort {
	t.Helper()
	return labtest.Serve(t, nil, net.JoinHostPort(addr, "0"), func(c net.Conn) {
		io.WriteString(c, text)
		if echo {
			io.Copy(c, c)
		} else {
			io.Copy(io.Discard, c)
		}
	})
}

// answerUDP answers each datagram with the text.
func answerUDP(t *testing.T, addr, text string) netip.AddrPort {
	t.Helper()
	return answerEach(t, addr, func([]byte) []byte { return []byte(text) })
}

// answerEach answers datagrams one after the other; nil: not.
func answerEach(t *testing.T, addr string, answer func([]byte) []byte) netip.AddrPort {
	t.Helper()
	p, err := net.ListenPacket("udp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := answer(buf[:n]); out != nil {
				p.WriteTo(out, from)
			}
		}
	}()
	return p.LocalAddr().(*net.UDPAddr).AddrPort()
}

// answerDNS is a resolver that answers each question with what the function returns: the
// time to live and the rest of the header are filled in.
func answerDNS(t *testing.T, addr string, answer func(dnsmessage.Question) []dnsmessage.ResourceBody) netip.AddrPort {
	t.Helper()
	return answerEach(t, addr, func(b []byte) []byte {
		var m dnsmessage.Message
		if m.Unpack(b) != nil || len(m.Questions) != 1 {
			return nil
		}
		q := m.Questions[0]
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		for _, body := range answer(q) {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}, Body: body})
		}
		out, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		return out
	})
}

// started is a guest that runs, and has said that it is ready.
type started struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan error // what Exec returned
}

// start runs a guest that says "ready" when it is.
func start(t *testing.T, exec func(context.Context, *exec.Cmd) error, name string, args ...string) *started {
	t.Helper()
	cmd, _ := guest(patience(t), name, args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	s := &started{cmd: cmd, stdin: stdin, ended: make(chan error, 1)}
	go func() { s.ended <- exec(patience(t), cmd); w.Close() }()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("guest said %q (%v): %v", line, err, <-s.ended)
	}
	t.Cleanup(func() { stdin.Close(); r.Close() })
	return s
}

func at(a netip.AddrPort, addr string) string { return fmt.Sprintf("%s:%d", addr, a.Port()) }

// answerThenClose says a text to each client and closes.
func answerThenClose(t *testing.T, text string) string {
	t.Helper()
	return labtest.Serve(t, nil, outside4+":0", labtest.Say(text)).String()
}
