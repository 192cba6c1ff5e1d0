package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/internal/localsock"
	"cleat/tunnel"
	"cleat/tunnel/spec"

	"github.com/google/go-cmp/cmp"
)

// TestConversation uses everything that a client can do, over a real socket.
func TestConversation(t *testing.T) {
	f := newFake(testName(t))
	c, ctx := serveFake(t, f), t.Context()

	status, err := c.Status(ctx)
	want := statusOf(f, status.At)
	if d := cmp.Diff(want, status, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); err != nil || d != "" {
		t.Errorf("status: %v\n%s", err, d)
	}
	if time.Since(status.At) > time.Minute {
		t.Errorf("status is that of %v", status.At)
	}
	states := func() string {
		var all []string
		for _, p := range f.Status().Paths {
			all = append(all, p.Name+"="+string(stateOf(tunnel.Status{Up: true}, p)))
		}
		return strings.Join(all, " ")
	}
	if err := c.SetPath(ctx, "dsl", false); err != nil || states() != "dsl=down lte=absent" {
		t.Errorf("path down: %v, %s", err, states())
	}
	if err := c.SetPath(ctx, "dsl", true); err != nil || states() != "dsl=live lte=absent" {
		t.Errorf("path up: %v, %s", err, states())
	}
	sat := spec.Path{Name: "sat", Device: "eth7", Local: netip.MustParseAddr("2001:db8::7"), LocalPort: 4801,
		Remote: netip.MustParseAddrPort("[2001:db8::9]:4800"), RateBitsPerSec: 5e6, Weight: 7, MTUBytes: 1400, Metered: true, Down: true}
	few := spec.Path{Name: "few", Device: "eth8", Remote: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.9"), 0)}
	for _, p := range []spec.Path{sat, few} {
		if err := c.AddPath(ctx, p); err != nil {
			t.Errorf("add path %s: %v", p.Name, err)
		}
	}
	if !slices.Equal(f.added, []spec.Path{sat, few}) {
		t.Errorf("added %+v", f.added)
	}
	if err := c.RemovePath(ctx, "sat"); err != nil || states() != "dsl=live lte=absent few=absent" {
		t.Errorf("remove path: %v, %s", err, states())
	}
	if r, err := c.Reload(ctx); err != nil || !reflect.DeepEqual(r, Reloaded{[]string{}, []string{}}) {
		t.Errorf("reload: %+v, %v", r, err)
	}
	f.reload = func() (Reloaded, error) { return Reloaded{[]string{"path few added"}, []string{"name stays"}}, nil }
	if r, err := c.Reload(ctx); err != nil || !reflect.DeepEqual(r, Reloaded{[]string{"path few added"}, []string{"name stays"}}) {
		t.Errorf("reload: %+v, %v", r, err)
	}
	if m, err := c.Metrics(ctx); err != nil || !strings.Contains(string(m), "cleat_tunnel_up{tunnel=") {
		t.Errorf("metrics: %v\n%s", err, m)
	}
	if err := c.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	<-f.stopped
}

// TestRefusals checks that the errors of a Target reach the client with status, text and
// hint.
func TestRefusals(t *testing.T) {
	f := newFake(testName(t))
	c, ctx := serveFake(t, f), t.Context()
	add := func(name string) error {
		return c.AddPath(ctx, spec.Path{Name: name, Device: "eth8", Remote: netip.MustParseAddrPort("198.51.100.9:1")})
	}
	reload := func(err error) error {
		f.reload = func() (Reloaded, error) { return Reloaded{}, err }
		_, err = c.Reload(ctx)
		return err
	}
	mistake := spec.Finding{File: "office.yaml", Line: 3, Column: 7, Severity: spec.Error, Message: "port 0", Allowed: "1…65535"}
	warning := spec.Finding{File: "office.yaml", Line: 2, Column: 1, Severity: spec.Warning, Message: "careful"}
	for _, tt := range []struct {
		name string
		err  error
		want Error
	}{
		{"enable an unknown path", c.SetPath(ctx, "dls", true), Error{404, `path "dls": no such path`, "", nil}},
		{"remove an unknown path", c.RemovePath(ctx, "dls"), Error{404, `path "dls": no such path`, "", nil}},
		{"a name with a slash", c.RemovePath(ctx, "a/b"), Error{404, `path "a/b": no such path`, "", nil}},
		{"a name that is a directory", c.RemovePath(ctx, ".."), Error{400, `path name ".." is not allowed`, "", nil}},
		{"no name", c.SetPath(ctx, "", true), Error{400, `path name "" is not allowed`, "", nil}},
		{"a path that exists", add("dsl"), Error{409, `path "dsl": path exists already`, "", nil}},
		{"too many", add(oneTooMany), Error{409, `path "too-many": too many paths`, "", nil}},
		{"an invalid path", add(noPath), Error{400, "add path: weight 0", "give it one", nil}},
		{"any other error", add(noReason), Error{500, "open socket: operation not permitted", "be root", nil}},
		{"a file with mistakes", reload(&FileError{[]spec.Finding{warning, mistake}}), Error{422, "office.yaml:3:7: error: port 0", "", []spec.Finding{warning, mistake}}},
		{"a file with two mistakes", reload(&FileError{[]spec.Finding{mistake, mistake}}), Error{422, "office.yaml:3:7: error: port 0 (and 1 more)", "", []spec.Finding{mistake, mistake}}},
		{"a file that does not exist", reload(os.ErrNotExist), Error{500, "file does not exist", "", nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var e *Error
			if !errors.As(tt.err, &e) || !reflect.DeepEqual(*e, tt.want) {
				t.Errorf("got  %#v\nwant %#v", e, tt.want)
			}
		})
	}
}

// TestRequests sends requests as a hostile or mistaken client would write them: each must
// be refused, and nothing may be done.
func TestRequests(t *testing.T) {
	long := `{"state":"` + strings.Repeat("u", maxRequestBytes) + `"}`
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"good", "POST", "/v1/paths/dsl", `{"state":"down"}`, 204, ""},
		{"unknown resource", "GET", "/v2/status", "", 404, "no such resource: /v2/status"},
		{"a method", "DELETE", "/v1/status", "", 405, "DELETE /v1/status: want GET"},
		{"wrong method for a path", "GET", "/v1/paths/dsl", "", 405, "want DELETE, POST, PUT"},
		{"stop by GET", "GET", "/v1/stop", "", 405, "want POST"},
		{"reload by GET", "GET", "/v1/reload", "", 405, "want POST"},
		{"no body", "POST", "/v1/paths/dsl", "", 400, "read request: EOF"},
		{"not JSON", "POST", "/v1/paths/dsl", "state=down", 400, "read request: invalid character"},
		{"an array", "POST", "/v1/paths/dsl", "[]", 400, "read request: json: cannot unmarshal array"},
		{"an unknown field", "POST", "/v1/paths/dsl", `{"state":"down","for":"1h"}`, 400, `unknown field \"for\"`},
		{"two objects", "POST", "/v1/paths/dsl", `{"state":"down"}{}`, 400, "more than one object"},
		{"unknown state", "POST", "/v1/paths/dsl", `{"state":"off"}`, 400, `state \"off\": want up or down`},
		{"no state", "POST", "/v1/paths/dsl", `{}`, 400, `state \"\": want up or down`},
		{"too long", "POST", "/v1/paths/dsl", long, 400, "request body too large"},
		{"a remote that is no address", "PUT", "/v1/paths/new", `{"device":"eth0","remote":"server"}`, 400, `remote \"server\": want an IP address`},
		{"remote is a name", "PUT", "/v1/paths/new", `{"remote":"example.com"}`, 400, `remote \"example.com\": want an IP address`},
		{"port 0", "PUT", "/v1/paths/new", `{"remote":"192.0.2.1:0"}`, 400, `remote \"192.0.2.1:0\": want an IP address`},
		{"port too large", "PUT", "/v1/paths/new", `{"remote":"192.0.2.1","local_port":65536}`, 400, "read request: json"},
		{"invalid local", "PUT", "/v1/paths/new", `{"remote":"192.0.2.1","local":"here"}`, 400, "read request: "},
		{"unknown state of a new path", "PUT", "/v1/paths/new", `{"remote":"192.0.2.1","state":"off"}`, 400, "want up or down"},
		{"new path", "PUT", "/v1/paths/new", `{"remote":"192.0.2.1"}`, 204, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake("x")
			w := httptest.NewRecorder()
			handler(f).ServeHTTP(w, httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body)))
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
				t.Errorf("answer %d %s\nwant %d with %q", w.Code, w.Body, tt.status, tt.want)
			}
			if done := f.paths[0].Down || len(f.paths) != 2; done != (tt.status == 204) {
				t.Errorf("something was done: %t", done)
			}
			if tt.status == 204 {
				return
			}
			var e Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Message == "" || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("the answer is no JSON error: %v\n%s", err, w.Body)
			}
			select {
			case <-f.stopped:
				t.Error("the tunnel was stopped")
			default:
			}
		})
	}
}

// TestStrangers checks that strangers get an error and use no slots.
func TestStrangers(t *testing.T) {
	l, err := Listen(testName(t))
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(testName(t))
	for _, tt := range []struct {
		name string
		peer func(*net.UnixConn) (int, error)
		want string // "": admitted
	}{
		{"ourselves", func(*net.UnixConn) (int, error) { return os.Getuid(), nil }, ""},
		{"root", func(*net.UnixConn) (int, error) { return 0, nil }, ""},
		{"the kernel", localsock.PeerUID, ""},
		{"another user", func(*net.UnixConn) (int, error) { return os.Getuid() + 1, nil }, "may not control the tunnel of user"},
		{"unknown user", func(*net.UnixConn) (int, error) { return 0, errors.New("no credentials") }, "no credentials"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Serve closes its listener, so each server needs its own.
			file, err := l.File()
			if err != nil {
				t.Fatal(err)
			}
			again, err := net.FileListener(file)
			file.Close()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- serve(ctx, gate{Listener: again, admit: admitUser(tt.peer)}, handler(f)) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			for range maxConnections + 3 { // more than there are slots
				status, body := rawRequest(t, l.Addr().String(), "GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
				if tt.want == "" && status != 200 || tt.want != "" && (status != 403 || !strings.Contains(body, tt.want)) {
					t.Fatalf("answer %d %s", status, body)
				}
				if tt.want != "" && strings.Contains(body, "eth0") {
					t.Fatalf("a stranger gets %s", body)
				}
			}
		})
	}
	l.Close()
}

// rawRequest sends a request and reads the answer without an HTTP client.
func rawRequest(t *testing.T, address, request string) (status int, body string) {
	t.Helper()
	c, err := net.Dial("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, request) // the server may have closed the connection
	all, err := io.ReadAll(c)
	if err != nil && len(all) == 0 {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(string(all), "\r\n\r\n")
	r := strings.Fields(head)
	if len(r) < 2 {
		t.Fatalf("answer %q", all)
	}
	status, err = strconv.Atoi(r[1])
	if err != nil {
		t.Fatalf("answer %q", all)
	}
	return status, body
}

// TestClientChecksUser checks that the client talks to no server of another user that
// uses the name.
func TestClientChecksUser(t *testing.T) {
	s := localsock.Socket{Kind: sockets, UID: os.Getuid() + 1, Name: testName(t)}
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, newFake(s.Name)) }()
	defer func() { cancel(); <-ended }()
	c := newClient(s)
	defer c.Close()
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "it belongs to user") {
		t.Errorf("status: %v, want that it belongs to another user", err)
	}
}

func TestNamesAreTakenOnce(t *testing.T) {
	id := testName(t)
	l, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(id); !errors.Is(err, ErrTaken) {
		t.Errorf("listen again: %v, want ErrTaken", err)
	}
	l.Close()
	if l, err = Listen(id); err != nil {
		t.Fatalf("listen after the first one has closed: %v", err)
	}
	l.Close()
}

func TestListAndDial(t *testing.T) {
	id := testName(t)
	serveFake(t, newFake(id))
	all, err := List(t.Context())
	if err != nil || !slices.ContainsFunc(all, func(s Status) bool { return s.Name == id && s.PID == os.Getpid() }) {
		t.Errorf("list: %+v, %v", all, err)
	}
	if all, err := Names(); err != nil || !slices.Contains(all, id) {
		t.Errorf("names: %v, %v", all, err)
	}
	c, err := Dial(t.Context(), strconv.Itoa(os.Getuid())+"/"+id)
	if err != nil {
		t.Errorf("dial by user and name: %v", err)
	} else {
		c.Close()
	}
	for _, ref := range []string{"no-" + id, "x/" + id, strconv.Itoa(os.Getuid()+1) + "/" + id} {
		if _, err := Dial(t.Context(), ref); !errors.Is(err, ErrNotRunning) {
			t.Errorf("dial %s: %v, want ErrNotRunning", ref, err)
		}
	}
}

// TestSilentServer checks that a tunnel that does not answer is neither waited for nor
// listed.
func TestSilentServer(t *testing.T) {
	id := testName(t)
	l, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // nobody serves
	c, err := Dial(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("status: %v, want deadline exceeded", err)
	}
}

// TestManyClients checks that clients beyond the limit wait and get their answers.
func TestManyClients(t *testing.T) {
	id := testName(t)
	serveFake(t, newFake(id))
	var all sync.WaitGroup
	for range 4 * maxConnections {
		all.Go(func() {
			c, err := Dial(t.Context(), id)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if _, err := c.Status(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestServeEnds checks that Serve closes idle connections and waits for answers that are
// being sent.
func TestServeEnds(t *testing.T) {
	f := newFake(testName(t))
	asked, answers := make(chan struct{}), make(chan struct{})
	f.reload = func() (Reloaded, error) {
		close(asked)
		<-answers
		return Reloaded{Changed: []string{"all"}}, nil
	}
	l, err := Listen(f.name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, f) }()
	c, err := Dial(t.Context(), f.name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Status(t.Context()); err != nil { // leaves an idle connection
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		r, err := c.Reload(context.WithoutCancel(ctx))
		if err == nil && !slices.Equal(r.Changed, []string{"all"}) {
			err = errors.New("another answer")
		}
		got <- err
	}()
	<-asked
	cancel()
	select {
	case err := <-ended:
		t.Errorf("Serve ended while an answer was being sent: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(answers)
	if err := <-got; err != nil {
		t.Errorf("answer that was being sent: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("query an ended server: %v, want ErrNotRunning", err)
	}
	if _, err := Dial(t.Context(), f.name); !errors.Is(err, ErrNotRunning) {
		t.Errorf("dial an ended server: %v, want ErrNotRunning", err)
	}
}

// TestStopEndsServe checks that a Target whose Stop ends Serve has answered before.
func TestStopEndsServe(t *testing.T) {
	for range 20 {
		f := newFake(testName(t))
		l, err := Listen(f.name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-f.stopped; cancel() }()
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, l, f) }()
		c, err := Dial(t.Context(), f.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Stop(t.Context()); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		c.Close()
		cancel()
	}
}

// TestStopAnswersFirst checks that the client of a stop gets its answer before anything
// ends.
func TestStopAnswersFirst(t *testing.T) {
	f := stopWaiter{newFake(testName(t)), make(chan struct{})}
	l, err := Listen(f.name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, f) }()
	c, err := Dial(t.Context(), f.name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	within, done := context.WithTimeout(t.Context(), 5*time.Second)
	defer done()
	if err := c.Stop(within); err != nil {
		t.Errorf("stop: %v", err)
	}
	close(f.answered)
	<-f.stopped
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// stopWaiter is a Target that stops when the client has its answer.
type stopWaiter struct {
	*fake
	answered chan struct{}
}

func (w stopWaiter) Stop() {
	<-w.answered
	w.fake.Stop()
}

// TestServeEndsAfterTheTarget checks that Serve waits for a Target that is slower than
// shutdownTimeout.
func TestServeEndsAfterTheTarget(t *testing.T) {
	t.Parallel()
	f := newFake(testName(t))
	asked, answers := make(chan struct{}), make(chan struct{})
	f.reload = func() (Reloaded, error) {
		close(asked)
		<-answers
		return Reloaded{}, nil
	}
	l, err := Listen(f.name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, f) }()
	c, err := Dial(t.Context(), f.name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	gave := make(chan error, 1)
	go func() { _, err := c.Reload(context.WithoutCancel(ctx)); gave <- err }()
	<-asked
	cancel()
	if err := <-gave; err == nil { // the connection was closed
		t.Error("got an answer that was never sent")
	}
	select {
	case <-ended:
		t.Error("Serve ended before the Target")
	case <-time.After(20 * time.Millisecond):
	}
	close(answers)
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
}
