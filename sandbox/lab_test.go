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

// Addresses outside of the guest's network, on the lab's loopback.
const (
	outside4 = "192.0.2.1"
	outside6 = "2001:db8::1"
)

// fakeInternet adds the outside addresses to the lab and allows ping sockets.
func fakeInternet(t *testing.T) {
	t.Helper()
	labtest.Outside(t, outside4, outside6)
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0); err != nil {
		t.Fatal(err)
	}
}

// serveTCP serves on a free port of an address. Each client gets the text, and with echo
// then its own bytes.
func serveTCP(t *testing.T, addr, text string, echo bool) netip.AddrPort {
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

// serveUDP answers each datagram with the text.
func serveUDP(t *testing.T, addr, text string) netip.AddrPort {
	t.Helper()
	return serveDatagrams(t, addr, func([]byte) []byte { return []byte(text) })
}

// serveDatagrams answers datagrams one after the other. It does not answer if answer
// returns nil.
func serveDatagrams(t *testing.T, addr string, answer func([]byte) []byte) netip.AddrPort {
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

// serveDNS is a resolver. It answers each question with the resources that answer
// returns, and fills in the time to live and the rest of the header.
func serveDNS(t *testing.T, addr string, answer func(dnsmessage.Question) []dnsmessage.ResourceBody) netip.AddrPort {
	t.Helper()
	return serveDatagrams(t, addr, func(b []byte) []byte {
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

// runningGuest is a guest that has printed "ready".
type runningGuest struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	result chan error // the result of Exec
}

// startGuest starts a guest and waits until it prints "ready".
func startGuest(t *testing.T, exec func(context.Context, *exec.Cmd) error, name string, args ...string) *runningGuest {
	t.Helper()
	cmd, _ := guest(testContext(t), name, args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	s := &runningGuest{cmd: cmd, stdin: stdin, result: make(chan error, 1)}
	go func() { s.result <- exec(testContext(t), cmd); w.Close() }()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the guest printed %q (%v), want ready; Exec: %v", line, err, <-s.result)
	}
	t.Cleanup(func() { stdin.Close(); r.Close() })
	return s
}

func withAddr(a netip.AddrPort, addr string) string { return fmt.Sprintf("%s:%d", addr, a.Port()) }

// serveAndClose sends a text to each client and closes the connection.
func serveAndClose(t *testing.T, text string) string {
	t.Helper()
	return labtest.Serve(t, nil, outside4+":0", labtest.Reply(text)).String()
}
