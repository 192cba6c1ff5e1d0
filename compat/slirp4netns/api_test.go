package slirp4netns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"cleat/sandbox"
)

// ports is a forwarder that records its forwards.
type ports map[string]bool

func (p ports) key(f sandbox.Forward) string {
	return fmt.Sprintf("%s %s>%s", f.Protocol, f.Listen, f.To)
}

func (p ports) Forward(f sandbox.Forward) (netip.AddrPort, error) {
	if f.Listen.Port() == 22 {
		return netip.AddrPort{}, fmt.Errorf("listen on %s: %w", f.Listen, syscall.EADDRINUSE)
	}
	p[p.key(f)] = true
	return f.Listen, nil
}

func (p ports) Unforward(f sandbox.Forward) error {
	if !p[p.key(f)] {
		return errors.New("never opened")
	}
	delete(p, p.key(f))
	return nil
}

// TestAPI is one conversation: each row depends on those before.
func TestAPI(t *testing.T) {
	open := ports{}
	ask := startAPI(t, &api{ports: open, guest: netip.MustParseAddr("10.0.2.100")})
	rows := []struct{ name, request, reply, open string }{
		{"no JSON", `badjson`, `{"error":{"desc":"bad request: cannot parse JSON"}}`, ""},
		{"garbage after it", `{"execute":"list_hostfwd"} x`, `{"error":{"desc":"bad request: cannot parse JSON"}}`, ""},
		{"no object", `[]`, `{"error":{"desc":"bad request: no execute found"}}`, ""},
		{"no execute", `{"unexpectedjson": 42}`, `{"error":{"desc":"bad request: no execute found"}}`, ""},
		{"unknown", `{"execute": "bad"}`, `{"error":{"desc":"bad request: unknown execute"}}`, ""},
		{"empty list", `{"execute": "list_hostfwd"}`, `{"entries":[],"return":{"entries":[]}}`, ""},
		{"bad proto", `{"execute": "add_hostfwd", "arguments":{"proto": "bad"}}`, `{"error":{"desc":"bad request: add_hostfwd: bad arguments.proto"}}`, ""},
		{"no arguments", `{"execute": "add_hostfwd"}`, `{"error":{"desc":"bad request: add_hostfwd: bad arguments.proto"}}`, ""},
		{"arguments of another kind", `{"execute": "add_hostfwd", "arguments": 5}`, `{"error":{"desc":"bad request: add_hostfwd: bad arguments"}}`, ""},
		{"no host port", `{"execute": "add_hostfwd", "arguments":{"proto": "tcp"}}`, `{"error":{"desc":"bad request: add_hostfwd: bad arguments.host_port"}}`, ""},
		{"a port too large", `{"execute": "add_hostfwd", "arguments":{"proto": "tcp","host_port":65536}}`, `{"error":{"desc":"bad request: add_hostfwd: bad arguments.host_port"}}`, ""},
		{"no guest port", `{"execute": "add_hostfwd", "arguments":{"proto": "tcp","host_port":8080}}`, `{"error":{"desc":"bad request: add_hostfwd: bad arguments.guest_port"}}`, ""},
		{"an IPv6 host address", `{"execute": "add_hostfwd", "arguments":{"proto": "tcp","host_addr":"::","host_port":8080,"guest_port":80}}`, `{"error":{"desc":"bad request: add_hostfwd: bad arguments.host_addr"}}`, ""},
		{"a name for a guest", `{"execute": "add_hostfwd", "arguments":{"proto": "tcp","guest_addr":"me","host_port":8080,"guest_port":80}}`, `{"error":{"desc":"bad request: add_hostfwd: bad arguments.guest_addr"}}`, ""},
		{"a port in use", `{"execute": "add_hostfwd", "arguments":{"proto": "tcp","host_port":22,"guest_port":22}}`,
			`{"error":{"desc":"bad request: add_hostfwd: slirp_add_hostfwd failed: listen on 0.0.0.0:22: address already in use"}}`, ""},
		{"tcp with defaults", `{"execute": "add_hostfwd", "arguments":{"proto": "tcp","host_port":8080,"guest_port":80}}`, `{"return":{"id":1}}`, "tcp 0.0.0.0:8080>10.0.2.100:80"},
		{"udp with addresses", `{"execute":"add_hostfwd","arguments":{"proto":"udp","host_addr":"127.0.0.1","host_port":53,"guest_addr":"10.0.2.15","guest_port":5353}}`, `{"return":{"id":2}}`, "udp 127.0.0.1:53>10.0.2.15:5353"},
		{"list", `{"execute": "list_hostfwd"}`, func() string {
			list := `[{"id":1,"proto":"tcp","host_addr":"0.0.0.0","host_port":8080,"guest_addr":"10.0.2.100","guest_port":80},` +
				`{"id":2,"proto":"udp","host_addr":"127.0.0.1","host_port":53,"guest_addr":"10.0.2.15","guest_port":5353}]`
			return `{"entries":` + list + `,"return":{"entries":` + list + `}}`
		}(), ""},
		{"remove", `{"execute": "remove_hostfwd", "arguments":{"id": 1}}`, `{"return":{}}`, "!tcp 0.0.0.0:8080>10.0.2.100:80"},
		{"remove again", `{"execute": "remove_hostfwd", "arguments":{"id": 1}}`, `{"error":{"desc":"bad request: remove_hostfwd: bad arguments.id"}}`, ""},
		{"ids are never used again", `{"execute": "add_hostfwd", "arguments":{"proto": "tcp","host_port":8080,"guest_port":80}}`, `{"return":{"id":3}}`, ""},
		{"too large", strings.Repeat(" ", 5000), `{"error":{"desc":"bad request: too large message"}}`, ""},
	}
	for _, r := range rows {
		if got := ask(r.request); got != r.reply {
			t.Errorf("%s:\n%s, want\n%s", r.name, got, r.reply)
		}
		if gone, is := strings.CutPrefix(r.open, "!"); is && open[gone] {
			t.Errorf("%s: %s is still open", r.name, gone)
		} else if !is && r.open != "" && !open[r.open] {
			t.Errorf("%s: %s is not open: %v", r.name, r.open, open)
		}
	}
}

// startAPI serves on a socket and returns a client that, like nc, does not close its
// writing side.
func startAPI(t *testing.T, a *api) func(request string) (reply string) {
	t.Helper()
	return startAPIAt(t, a, func(l net.Listener) net.Listener { return l })
}

// startAPIAt is startAPI with a listener that wrap returns.
func startAPIAt(t *testing.T, a *api, wrap func(net.Listener) net.Listener) func(request string) (reply string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api.sock")
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	at := wrap(l)
	go func() { ended <- a.serve(ctx, at) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return func(request string) string {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) { // the rest of a request that is too large
			t.Fatal(err)
		}
		return string(b)
	}
}

// TestAPIEndsAmidARequest: a silent client does not delay the end.
func TestAPIEndsAmidARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &handed{clients: make(chan net.Conn, 1)}
		defer l.dial().Close()
		ctx, stop := context.WithCancel(t.Context())
		start := time.Now()
		time.AfterFunc(patience/2, func() { stop(); close(l.clients) })
		if err := (&api{}).serve(ctx, l); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != patience/2 {
			t.Errorf("it waited %v more", took-patience/2)
		}
	})
}

// lacking is a listener whose first Accept calls fail with temporary errors.
type lacking struct {
	net.Listener
	errs []error
}

func (l *lacking) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", err)}
	}
	return l.Listener.Accept()
}

// A shortage of descriptors or memory, or a client that has gone, does not end the API.
func TestAPIOutlivesFailuresToAccept(t *testing.T) {
	ask := startAPIAt(t, &api{ports: ports{}}, func(l net.Listener) net.Listener {
		return &lacking{l, []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS}}
	})
	if got := ask(`{"execute": "list_hostfwd"}`); got != `{"entries":[],"return":{"entries":[]}}` {
		t.Errorf("got %s", got)
	}
}

// Silent clients delay nobody.
func TestAPIServesOthersBesideSilentClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := &handed{clients: make(chan net.Conn)}
		ended := make(chan error)
		go func() { ended <- (&api{ports: ports{}}).serve(ctx, l) }()
		start := time.Now()
		for range mostClients - 1 {
			l.dial()
		}
		c := l.dial()
		go c.Write([]byte(`{"execute": "list_hostfwd"}`))
		reply, _ := io.ReadAll(c)
		if string(reply) != `{"entries":[],"return":{"entries":[]}}` || time.Since(start) != 0 {
			t.Errorf("got %s after %v", reply, time.Since(start))
		}
		stop()
		close(l.clients)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// handed is a listener of in-memory connections.
type handed struct{ clients chan net.Conn }

func (l *handed) dial() net.Conn {
	near, far := net.Pipe()
	l.clients <- near
	return far
}

func (l *handed) Accept() (net.Conn, error) {
	if c, ok := <-l.clients; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l *handed) Close() error   { return nil }
func (l *handed) Addr() net.Addr { return &net.UnixAddr{} }

// A client that does not read its answer is dropped.
func TestAPIGivesUpAClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // has no buffer
		start := time.Now()
		go far.Write([]byte(`{"execute": "list_hostfwd"}`))
		(&api{ports: ports{}}).converse(near)
		if took := time.Since(start); took != patience {
			t.Errorf("it took %v", took)
		}
	})
}

// Clients beyond mostClients wait, and are served after others have ended.
func TestAPIBoundsClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := &endless{}
		ended := make(chan error)
		go func() { ended <- (&api{ports: ports{}}).serve(ctx, l) }()
		synctest.Wait()
		if n := l.accepted.Load(); n != mostClients {
			t.Errorf("%d silent clients are served at once", n)
		}
		time.Sleep(patience)
		synctest.Wait()
		if n := l.accepted.Load(); n != 2*mostClients {
			t.Errorf("%d clients have been served after %v", n, patience)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// endless is a listener whose clients send nothing.
type endless struct{ accepted atomic.Int32 }

func (l *endless) Accept() (net.Conn, error) {
	l.accepted.Add(1)
	near, _ := net.Pipe()
	return near, nil
}
func (l *endless) Close() error   { return nil }
func (l *endless) Addr() net.Addr { return &net.UnixAddr{} }

func TestAPIBoundsForwards(t *testing.T) {
	a := &api{ports: ports{}, guest: netip.MustParseAddr("10.0.2.100")}
	for port := range mostForwards + 1 {
		_, err := a.answer(fmt.Appendf(nil, `{"execute":"add_hostfwd","arguments":{"proto":"udp","host_port":%d,"guest_port":80}}`, 1000+port))
		if (err == nil) != (port < mostForwards) {
			t.Fatalf("forward %d: %v", port+1, err)
		}
	}
	if _, err := a.answer([]byte(`{"execute":"remove_hostfwd","arguments":{"id":1}}`)); err != nil {
		t.Error(err)
	}
	if _, err := a.answer([]byte(`{"execute":"add_hostfwd","arguments":{"proto":"udp","host_port":1000,"guest_port":80}}`)); err != nil {
		t.Errorf("one was closed, and another can't be opened: %v", err)
	}
}

// TestListen replaces a stale socket, and no other file.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	for range 2 {
		l, err := listen(path)
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	if _, err := listen(t.TempDir()); err == nil {
		t.Error("a directory made way for the socket")
	}
	if _, err := listen(path + strings.Repeat("x", 108)); err == nil {
		t.Error("a path longer than sun_path was taken")
	}
}

// FuzzAnswer looks for requests that crash the API, or whose answer is not JSON.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"execute": "add_hostfwd", "arguments":{"proto": "tcp","host_port":8080,"guest_port":80}}`))
	f.Add([]byte(`{"execute": "remove_hostfwd", "arguments":{"id": 1}}`))
	f.Add([]byte(`{"execute": "list_hostfwd"}`))
	f.Fuzz(func(t *testing.T, request []byte) {
		a := &api{ports: ports{}, guest: netip.MustParseAddr("10.0.2.100")}
		reply, err := a.answer(request)
		if (err == nil) == (reply == nil) {
			t.Fatalf("reply %v, error %v", reply, err)
		}
		if _, err := json.Marshal(reply); err != nil {
			t.Fatal(err)
		}
	})
}
