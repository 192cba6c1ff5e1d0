package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"cleat/usernet"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fake is a Target in memory.
type fake struct {
	mu       sync.Mutex
	info     Info
	forwards []Forward
	policy   string
	stopped  chan struct{}
	flows    []Flow // nil means a default of one flow
}

func (f *fake) Info() Info { return f.info }

func (f *fake) Flows() ([]Flow, error) {
	if f.flows != nil {
		return f.flows, nil
	}
	return []Flow{{Protocol: "tcp", Source: netip.MustParseAddrPort("192.0.2.2:40000"),
		Destination: netip.MustParseAddrPort("[2001:db8::1]:443"), Name: "example.com", State: "established", OutBytes: 7}}, nil
}

func (f *fake) Stats() Stats { return Stats{Stats: usernet.Stats{TCPFlows: 3, Open: 1}} }

func (f *fake) Forwards() ([]Forward, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.forwards, nil
}

func (f *fake) AddForward(w Forward) (Forward, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.Listen.Port == 1 {
		return Forward{}, errorWithHint{fmt.Errorf("open port 1: %w", syscall.EACCES)}
	}
	if w.Listen.Port == 0 {
		w.Listen.Port = 32768
	}
	f.forwards = append(f.forwards, w)
	return w, nil
}

type errorWithHint struct{ error }

func (errorWithHint) Hint() string { return "take a port above 1023" }

func (f *fake) RemoveForward(w Forward) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, have := range f.forwards {
		if have == w {
			f.forwards = append(f.forwards[:i], f.forwards[i+1:]...)
			return nil
		}
	}
	return errors.New("no such forward")
}

func (f *fake) Policy() (string, error) { return f.policy, nil }

func (f *fake) SetPolicy(text string) error {
	if strings.Contains(text, "alow") {
		return BadRequest("line 1: unknown word %q", "alow")
	}
	f.policy = text
	return nil
}

func (f *fake) Stop() { close(f.stopped) }

// serve starts a server for the duration of the test.
func serve(t *testing.T, s *Server, f *fake) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, f) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func newFake(name string) *fake {
	return &fake{info: Info{Name: name, PID: os.Getpid(), UID: os.Getuid(), MTU: 65520, Command: []string{"sh", "-c", "true"},
		Namespace: "/proc/1/ns/net", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
		policy: "default deny\n", stopped: make(chan struct{})}
}

// name returns a helper name that is unique on the machine.
func name(t *testing.T) string { return fmt.Sprintf("test-%d-%s", os.Getpid(), t.Name()) }

// All requests work over both kinds of socket.
func TestConversation(t *testing.T) {
	for _, kind := range []string{"abstract", "path"} {
		t.Run(kind, func(t *testing.T) {
			id := strings.ReplaceAll(name(t), "/", "-")
			ref := id
			s, err := Listen(id)
			if kind == "path" {
				if err == nil {
					s.Close()
				}
				ref = filepath.Join(t.TempDir(), "control")
				s, err = ListenPath(ref)
				if errors.Is(err, errors.ErrUnsupported) {
					t.Skip(err)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			f := newFake(id)
			serve(t, s, f)
			c, err := Dial(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			converse(t, c, f)
			if err := c.Stop(t.Context()); err != nil {
				t.Errorf("stop: %v", err)
			}
			<-f.stopped
		})
	}
}

func converse(t *testing.T, c *Client, f *fake) {
	t.Helper()
	ctx := t.Context()
	info, err := c.Info(ctx)
	equal := cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})
	if d := cmp.Diff(f.info, info, equal); err != nil || d != "" {
		t.Errorf("info: %v\n%s", err, d)
	}
	flows, err := c.Flows(ctx)
	want, _ := f.Flows()
	if d := cmp.Diff(want, flows, equal); err != nil || d != "" {
		t.Errorf("flows: %v\n%s", err, d)
	}
	if stats, err := c.Stats(ctx); err != nil || !reflect.DeepEqual(stats, f.Stats()) {
		t.Errorf("stats: %+v, %v", stats, err)
	}
	web := Forward{Protocol: "tcp", Listen: Endpoint{Addr: netip.MustParseAddr("::1")}, To: Endpoint{Port: 80}}
	added, err := c.AddForward(ctx, web)
	if err != nil || added.Listen.Port != 32768 || added.Listen.Addr != web.Listen.Addr || added.To.Addr.IsValid() {
		t.Errorf("add forward: %+v, %v", added, err)
	}
	all, err := c.Forwards(ctx)
	if err != nil || len(all) != 1 || all[0] != added {
		t.Errorf("forwards: %+v, %v", all, err)
	}
	if err := c.RemoveForward(ctx, added); err != nil {
		t.Errorf("remove forward: %v", err)
	}
	if err := c.RemoveForward(ctx, added); err == nil || !strings.Contains(err.Error(), "no such forward") {
		t.Errorf("remove a removed forward: %v, want an error", err)
	}
	var e *Error
	if _, err := c.AddForward(ctx, Forward{Protocol: "tcp", Listen: Endpoint{Port: 1}, To: Endpoint{Port: 1}}); !errors.As(err, &e) || e.Kind != KindFailed || e.Hint != (errorWithHint{}).Hint() {
		t.Errorf("add a forward that fails: %#v, want KindFailed with a hint", err)
	}
	if err := c.SetPolicy(ctx, "alow *"); !errors.As(err, &e) || e.Kind != KindRequest {
		t.Errorf("set an invalid policy: %#v, want KindRequest", err)
	}
	if err := c.SetPolicy(ctx, ""); err != nil {
		t.Errorf("set an empty policy: %v", err)
	}
	if text, err := c.Policy(ctx); err != nil || text != "" {
		t.Errorf("policy: %q, %v", text, err)
	}
}

// Invalid requests are answered with the kind of error.
func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		kind       Kind // "" if it is valid
		want       string
	}{
		{"valid", `{"version":1,"do":"stats"}`, "", `"tcp_flows":3`},
		{"no JSON", `stats`, KindRequest, "read request"},
		{"empty", ``, KindRequest, "read request"},
		{"array", `[]`, KindRequest, "read request"},
		{"no version", `{"do":"stats"}`, KindVersion, "version 1"},
		{"later version with an unknown field", `{"version":2,"do":"stats","more":true}`, KindVersion, "version 1 of the control protocol, not 2"},
		{"unknown operation", `{"version":1,"do":"reboot"}`, KindRequest, `unknown request \"reboot\"`},
		{"unknown field", `{"version":1,"do":"stats","since":"now"}`, KindRequest, "since"},
		{"field of another operation", `{"version":1,"do":"stats","policy":""}`, KindRequest, `does not take the field \"policy\"`},
		{"missing policy", `{"version":1,"do":"policy-set"}`, KindRequest, `needs the field \"policy\"`},
		{"missing forward", `{"version":1,"do":"forward-add"}`, KindRequest, `needs the field \"forward\"`},
		{"forward without a port", `{"version":1,"do":"forward-add","forward":{"protocol":"tcp"}}`, KindRequest, "port above 0"},
		{"invalid protocol", `{"version":1,"do":"forward-add","forward":{"protocol":"icmp","to":{"port":1}}}`, KindRequest, "tcp or udp"},
		{"port too large", `{"version":1,"do":"forward-add","forward":{"protocol":"tcp","to":{"port":65536}}}`, KindRequest, "read request"},
		{"two requests on a line", `{"version":1,"do":"stats"} {"version":1,"do":"stats"}`, KindRequest, "read request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, stop := answer([]byte(tt.line), newFake("x"))
			text, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			kind := Kind("")
			if a.Error != nil {
				kind = a.Error.Kind
			}
			if kind != tt.kind || !strings.Contains(string(text), tt.want) || stop || a.Version != Version {
				t.Errorf("answer %s, want kind %q and text %q", text, tt.kind, tt.want)
			}
		})
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"version":1,"do":"forward-add","forward":{"protocol":"udp","listen":{"address":"192.0.2.1","port":53},"to":{"address":"","port":53}}}`))
	f.Add([]byte(`{"version":1,"do":"policy-set","policy":"allow *"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		a, _ := answer(line, newFake("x"))
		if _, err := json.Marshal(a); err != nil {
			t.Errorf("marshal the answer to %q: %v", line, err)
		}
	})
}

// The server stops reading a line that is too long.
func TestRequestTooLong(t *testing.T) {
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, s, newFake(id))
	c, err := net.Dial("unix", socketKind.Own(id).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go c.Write(make([]byte, 2*requestBytes)) // fails when the server closes the connection
	line, err := bufio.NewReader(c).ReadString('\n')
	// The server closes the connection with unread data, so the client may get ECONNRESET
	// instead of the answer.
	if !strings.Contains(line, "longer than") && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("answer %q, %v", line, err)
	}
}

// Clients beyond the limit wait, and all get their answers.
func TestManyClients(t *testing.T) {
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, s, newFake(id))
	var all sync.WaitGroup
	for range 4 * connections {
		all.Go(func() {
			c, err := Dial(t.Context(), id)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if _, err := c.Stats(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Serve closes idle connections when its context ends.
func TestServeEnds(t *testing.T) {
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, newFake(id)) }()
	c, err := Dial(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := c.Info(t.Context()); err == nil {
		t.Error("the server answers after Serve has returned")
	}
	if _, err := Dial(t.Context(), id); !errors.Is(err, ErrNotRunning) {
		t.Errorf("dial after Serve has returned: %v, want ErrNotRunning", err)
	}
}

func TestListenNameTaken(t *testing.T) {
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(id); !errors.Is(err, ErrTaken) {
		t.Errorf("listen again: %v, want ErrTaken", err)
	}
	s.Close()
	s, err = Listen(id)
	if err != nil {
		t.Fatalf("listen after Close: %v", err)
	}
	s.Close()
}

func TestListenPath(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "control")
	s, err := ListenPath(at)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(at)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", info.Mode(), err)
	}
	if _, err := ListenPath(at); !errors.Is(err, ErrTaken) {
		t.Errorf("listen again: %v, want ErrTaken", err)
	}
	s.l.SetUnlinkOnClose(false) // as after SIGKILL
	s.Close()
	if s, err = ListenPath(at); err != nil {
		t.Fatalf("listen at the path of a killed helper: %v", err)
	}
	s.Close()
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Close left the socket file: %v", err)
	}
	if _, err := Dial(t.Context(), at); !errors.Is(err, ErrNotRunning) {
		t.Errorf("dial: %v, want ErrNotRunning", err)
	}
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenPath(at); !errors.Is(err, fs.ErrExist) {
		t.Errorf("listen at the path of another file: %v, want ErrExist", err)
	}
}

func TestListAndDialByPID(t *testing.T) {
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(id)
	f.info.Namespace = "/proc/7/ns/net"
	serve(t, s, f)
	all, err := List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, info := range all {
		found = found || info.Name == id && info.PID == os.Getpid()
	}
	if !found {
		t.Errorf("List returns %+v, want the helper", all)
	}
	for _, ref := range []string{fmt.Sprint(os.Getpid()), "7"} {
		c, err := Dial(t.Context(), ref)
		if err != nil {
			t.Errorf("dial %s: %v", ref, err)
			continue
		}
		if info, err := c.Info(t.Context()); err != nil || info.Name != id {
			t.Errorf("dial %s: %+v, %v", ref, info, err)
		}
		c.Close()
	}
	if _, err := Dial(t.Context(), "4194305"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("dial a process id above the maximum: %v, want ErrNotRunning", err)
	}
}

// A client gives up when its context ends.
func TestSilentServer(t *testing.T) {
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // no call of Serve: connections wait in the queue
	c, err := Dial(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Info(ctx); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("info: %v, want a deadline error", err)
	}
}

func TestCheckName(t *testing.T) {
	for _, tt := range []struct {
		name string
		ok   bool
	}{
		{"web", true}, {"web-1.example_a", true}, {"4a", true},
		{"", false}, {"12", false}, {"a/b", false}, {"a b", false}, {"ä", false}, {strings.Repeat("a", 65), false},
	} {
		if err := CheckName(tt.name); (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.name, err)
		}
	}
}

func TestForwardString(t *testing.T) {
	for _, tt := range []struct {
		f    Forward
		want string
	}{
		{Forward{Protocol: "tcp", Listen: Endpoint{Port: 8080}, To: Endpoint{Port: 80}}, "8080:80"},
		{Forward{Protocol: "udp", Listen: Endpoint{netip.MustParseAddr("127.0.0.1"), 53}, To: Endpoint{Port: 53}}, "127.0.0.1:53:53/udp"},
		{Forward{Protocol: "tcp", Listen: Endpoint{netip.MustParseAddr("::1"), 53}, To: Endpoint{Port: 54}}, "[::1]:53:54"},
		{Forward{Protocol: "tcp", Interface: "eth0", Listen: Endpoint{netip.MustParseAddr("::1"), 53}, To: Endpoint{Port: 54}}, "[::1%eth0]:53:54"},
		{Forward{Protocol: "tcp", Interface: "eth0", Listen: Endpoint{Port: 53}, To: Endpoint{Port: 54}}, "%eth0:53:54"},
	} {
		if got := tt.f.String(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.f, got, tt.want)
		}
	}
}

// An answer can hold the maximum number of flows with the longest fields and the names with
// the longest encoding.
func TestFlowsFitAnswer(t *testing.T) {
	at := netip.MustParseAddrPort("[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff%cleat0123456789]:65535")
	for _, worst := range []string{"<", "\\", `"`} {
		f := Flow{Protocol: "icmp6", Inbound: true, Source: at, Destination: at, Host: at, Name: strings.Repeat(worst, 253) + "…",
			State: "established", Tier: "seccomp", Why: strings.Repeat("w", 80), Started: time.Date(2026, 12, 31, 23, 59, 59, 123456789, time.FixedZone("", 3600)),
			OutBytes: 1 << 63, InBytes: 1 << 63, QueuedOut: 1 << 30, QueuedIn: 1 << 30}
		id := name(t)
		s, err := Listen(id)
		if err != nil {
			t.Fatal(err)
		}
		many := newFake(id)
		many.flows = slices.Repeat([]Flow{f}, 1<<16)
		serve(t, s, many)
		c, err := Dial(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Flows(t.Context()); err != nil || len(got) != len(many.flows) {
			t.Errorf("names of %q: got %d flows, %v", worst, len(got), err)
		}
		c.Close()
		s.Close()
	}
}

// A slow client loses its connection after a timeout, however it is slow.
func TestSlowClients(t *testing.T) {
	request := []byte(`{"version":1,"do":"info"}` + "\n")
	forever := func(c net.Conn, do func() error) {
		for do() == nil {
			time.Sleep(time.Second)
		}
	}
	for _, tt := range []struct {
		name   string
		client func(c net.Conn)
		within time.Duration
	}{
		{"sends nothing", func(net.Conn) {}, idleTimeout},
		{"sends a request byte by byte", func(c net.Conn) {
			forever(c, func() error { _, err := c.Write([]byte(" ")); return err })
		}, idleTimeout},
		{"does not read", func(c net.Conn) { c.Write(request) }, writeWithin},
		{"reads byte by byte", func(c net.Conn) {
			c.Write(request)
			forever(c, func() error { _, err := c.Read(make([]byte, 1)); return err })
		}, writeWithin},
		{"does not read the answer to a request that is too long", func(c net.Conn) { c.Write(make([]byte, 2*requestBytes)) }, writeWithin},
		{"is slow after a quick request", func(c net.Conn) {
			c.Write(request)
			bufio.NewReader(c).ReadBytes('\n')
			forever(c, func() error { _, err := c.Write([]byte(" ")); return err })
		}, idleTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				start := time.Now()
				var client sync.WaitGroup
				client.Go(func() { tt.client(theirs) })
				answerAll(ours, newFake("x"))
				if took := time.Since(start); took > tt.within+time.Second {
					t.Errorf("the connection was open for %v, want at most %v", took, tt.within)
				}
				ours.Close()
				client.Wait()
			})
		})
	}
}
