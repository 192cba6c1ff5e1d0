package traffic_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/traffic"
)

func TestServerKilled(t *testing.T) {
	for _, cfg := range []traffic.Config{
		{Work: traffic.TCP}, {Work: traffic.UDP, BitsPerSecond: 1e6}, {Work: traffic.RR},
		{Work: traffic.UDPRR}, {Work: traffic.CRR}, {Work: traffic.UDP, BitsPerSecond: 1e6, Reverse: true},
	} {
		t.Run(string(cfg.Work), func(t *testing.T) {
			cmd, address := child{Address: "127.0.0.1:0", CPU: -1}.server(t, nil)
			cfg.Address, cfg.Duration = address, time.Hour
			time.AfterFunc(200*time.Millisecond, func() { cmd.Process.Kill() })
			r, err := traffic.Run(context.Background(), cfg)
			if err == nil {
				t.Errorf("no error though the server was killed: %+v", r)
			}
		})
	}
}

// A client that vanishes ends its own test and no other.
func TestClientKilled(t *testing.T) {
	done := make(chan traffic.Served, 1)
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0", Done: func(s traffic.Served) { done <- s }})
	c := hello(t, address, 1, `{"version":1,"kind":"hello","params":{"work":"tcp","duration_ns":1000000000,"streams":1,"message_bytes":1000}}`)
	expect(t, c, "ready")
	c.Close()
	if s := <-done; s.Work != traffic.TCP {
		t.Errorf("served %+v", s)
	}
	receivedBytes(t, run(t, traffic.Config{Work: traffic.TCP, Address: address}))
}

// hello opens a control connection and sends a hello.
func hello(t *testing.T, address string, version byte, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	b := append([]byte("cltt"), version, 1, 0, 0)
	b = append(b, "0123456789abcdef"...)
	if body != "" {
		b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
		b = append(b, body...)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	return c
}

// expect reads one control message and checks its kind.
func expect(t *testing.T, c net.Conn, kind string) (text string) {
	t.Helper()
	var n uint32
	if err := binary.Read(c, binary.BigEndian, &n); err != nil {
		t.Fatalf("wait for %q: %v", kind, err)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	var m struct{ Kind, Error string }
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if m.Kind != kind {
		t.Fatalf("message %s, want %q", b, kind)
	}
	return m.Error
}

// Whatever arrives at the port, the server answers or closes the connection, and
// continues to serve.
func TestGarbageOnThePort(t *testing.T) {
	const good = `{"version":1,"kind":"hello","params":{"work":"tcp","duration_ns":1000000000,"streams":1,"message_bytes":1000}}`
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	closes := func(t *testing.T, c net.Conn) {
		t.Helper()
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("the server sent %d bytes, want it to close", n)
		}
	}
	t.Run("HTTP", func(t *testing.T) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: example\r\n\r\n")
		closes(t, c)
	})
	t.Run("truncated preamble", func(t *testing.T) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "cltt")
		c.(*net.TCPConn).CloseWrite()
		closes(t, c)
	})
	t.Run("truncated hello", func(t *testing.T) {
		c := hello(t, address, 1, "")
		c.Write([]byte{0, 0, 1, 0, '{'})
		c.(*net.TCPConn).CloseWrite()
		expect(t, c, "error")
	})
	t.Run("next version", func(t *testing.T) {
		if text := expect(t, hello(t, address, 2, good), "error"); !strings.Contains(text, "version") {
			t.Errorf("error %q does not name the version", text)
		}
	})
	t.Run("no JSON", func(t *testing.T) { expect(t, hello(t, address, 1, "hello"), "error") })
	t.Run("no parameters", func(t *testing.T) { expect(t, hello(t, address, 1, `{"version":1,"kind":"hello"}`), "error") })
	t.Run("not hello", func(t *testing.T) { expect(t, hello(t, address, 1, `{"version":1,"kind":"start"}`), "error") })
	t.Run("token in use", func(t *testing.T) {
		first := hello(t, address, 1, good)
		expect(t, first, "ready")
		if text := expect(t, hello(t, address, 1, good), "error"); !strings.Contains(text, "token") {
			t.Errorf("error %q does not name the token", text)
		}
	})
	t.Run("stream of an unknown test", func(t *testing.T) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write(append([]byte("cltt\x01\x02\x00\x00"), "no such token...."...)[:24])
		closes(t, c)
	})
	t.Run("datagrams", func(t *testing.T) {
		c, err := net.Dial("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, b := range []string{"", "x", "cl\x01\x01", "cl\x01\x01" + strings.Repeat("\xff", 28), strings.Repeat("\x00", 1400)} {
			io.WriteString(c, b)
		}
	})
	receivedBytes(t, run(t, traffic.Config{Work: traffic.TCP, Address: address}))
	lossless(t, run(t, traffic.Config{Work: traffic.UDP, Address: address, BitsPerSecond: 1e6}))
}

func TestStreamIndexTwice(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	expect(t, hello(t, address, 1, `{"version":1,"kind":"hello","params":{"work":"tcp","duration_ns":1000000000,"streams":2,"message_bytes":1000}}`), "ready")
	stream := func(index byte) net.Conn {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.Write(append([]byte{'c', 'l', 't', 't', 1, 2, 0, index}, "0123456789abcdef"...))
		return c
	}
	// Of two streams with the same index, and one with an index too large, one stays.
	conns := []net.Conn{stream(0), stream(0), stream(2)}
	closed := make(chan int, len(conns))
	for i, c := range conns {
		go func() {
			c.Read(make([]byte, 1))
			closed <- i
		}()
	}
	<-closed
	<-closed
	select {
	case i := <-closed:
		t.Errorf("stream %d was closed too", i)
	default:
	}
}

func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	for _, w := range traffic.Works() {
		if r, err := traffic.Run(context.Background(), traffic.Config{Work: w, Address: address}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, %+v; want connection refused", w, err, r)
		}
	}
	_, err = traffic.Run(context.Background(), traffic.Config{Work: traffic.TCP, Address: address, Control: "unix:/nonexistent/control"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no control socket: %v", err)
	}
}

// A server of another program accepts the connection, and sends nothing or garbage.
func TestNotOurServer(t *testing.T) {
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
			io.WriteString(c, "220 mail.example ESMTP\r\n")
			c.Close()
		}
	}()
	_, err = traffic.Run(context.Background(), traffic.Config{Work: traffic.TCP, Address: l.Addr().String()})
	if err == nil {
		t.Error("a mail server is taken for a traffic server")
	}
}

func TestPortInUse(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	err := traffic.Serve(context.Background(), traffic.ServeConfig{Listen: address})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second server at one port: %v", err)
	}
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if err := traffic.Serve(context.Background(), traffic.ServeConfig{Listen: u.LocalAddr().String()}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("server at a port that is taken for UDP: %v", err)
	}
	path := filepath.Join(t.TempDir(), "control")
	serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0", Control: "unix:" + path})
	err = traffic.Serve(context.Background(), traffic.ServeConfig{Listen: "127.0.0.1:0", Control: "unix:" + path})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second server at one control socket: %v", err)
	}
}

// A control socket left behind by a killed server is replaced.
func TestStaleControlSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0", Control: "unix:" + path})
	receivedBytes(t, run(t, traffic.Config{Work: traffic.TCP, Address: address, Control: "unix:" + path}))
}

// A silent connection does not delay the end of a server.
func TestServerEndsDespiteSilentClients(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control")
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0", Control: "unix:" + path})
	for network, at := range map[string]string{"tcp": address, "unix": path} {
		c, err := net.Dial(network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() }) // after the server has ended
		io.WriteString(c, "cl")
	}
	expect(t, hello(t, address, 1, `{"version":1,"kind":"hello","params":{"work":"udp","duration_ns":1000000000,"streams":1,"message_bytes":1000}}`), "ready")
}
