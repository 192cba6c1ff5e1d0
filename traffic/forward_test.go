package traffic_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"cleat/traffic"
)

// freePort returns an address at which nothing listens, by TCP or UDP.
func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// forwarding runs Forward until the test ends and returns its address.
func forwarding(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	at := freePort(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- traffic.Forward(ctx, at, to) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Forward: %v", err)
		}
	})
	for {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			c.Close()
			return at
		}
	}
}

func TestForwardTCPWithHalfClose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				all, _ := io.ReadAll(c) // returns only when the half-close arrives
				c.Write(bytes.ToUpper(all))
			}()
		}
	}()
	at := forwarding(t, l.Addr().(*net.TCPAddr).AddrPort())
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "ahoy")
	c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "AHOY" {
		t.Errorf("got %q, %v; want AHOY", got, err)
	}
}

func TestForwardUDP(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			server.WriteTo(bytes.ToUpper(buf[:n]), from)
		}
	}()
	at := forwarding(t, server.LocalAddr().(*net.UDPAddr).AddrPort())
	for _, word := range []string{"ahoy", "cleat"} { // two senders
		c, err := net.Dial("udp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, word)
		buf := make([]byte, 1500)
		n, err := c.Read(buf)
		if err != nil || string(buf[:n]) != string(bytes.ToUpper([]byte(word))) {
			t.Errorf("got %q, %v; want %q in capitals", buf[:n], err, word)
		}
	}
}

func TestForwardWithoutServer(t *testing.T) {
	at := forwarding(t, freePort(t))
	c, err := net.Dial("tcp", at.String())
	if errors.Is(err, syscall.ECONNRESET) {
		return // the reset came before Dial returned
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("a connection to nobody ended with %v, want a reset", err)
	}
}
