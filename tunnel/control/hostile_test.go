package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/internal/localsock"
	"cleat/tunnel"
	"cleat/tunnel/spec"
)

// listenNamed opens a socket of this user that is closed after the test.
func listenNamed(t *testing.T, name string) localsock.Socket {
	t.Helper()
	s := sockets.Own(name)
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return s
}

// TestNamesOfNoTunnel opens sockets with names that no tunnel can have.
func TestNamesOfNoTunnel(t *testing.T) {
	strange := []string{"\x1b]0;x\x07" + testName(t), testName(t) + "\x9b2J", "a/" + testName(t), strings.Repeat("x", 65), ".."}
	for _, n := range strange {
		listenNamed(t, n)
	}
	all, err := Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range strange {
		if slices.Contains(all, n) {
			t.Errorf("%q is listed as a tunnel", n)
		}
	}
}

// TestListIsNotHeldUp has many programs listen as tunnels do, without answering.
func TestListIsNotHeldUp(t *testing.T) {
	for i := range 50 {
		listenNamed(t, fmt.Sprintf("%s-%d", testName(t), i))
	}
	f := newFake("z-" + testName(t)) // the last by name
	serveFake(t, f)
	ctx, cancel := context.WithTimeout(t.Context(), 3*listTimeout)
	defer cancel()
	all, err := List(ctx)
	if err != nil || !slices.ContainsFunc(all, func(s Status) bool { return s.Name == f.name }) {
		t.Errorf("%d tunnels, %v", len(all), err)
	}
}

// TestHostileAnswers has a server answer arbitrary data: what is shown to the user must
// be printable and about the right tunnel.
func TestHostileAnswers(t *testing.T) {
	const escape = "\x1b]0;pwned\x07"
	id := testName(t)
	s := sockets.Own(id)
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/status":
			_ = json.NewEncoder(w).Encode(Status{Info: Info{Name: "root's", PID: 1, Scheduler: escape, Sealed: Sealed{Capabilities: []string{escape}}},
				UID: 0, Cipher: escape, Paths: []Path{{Name: "p" + escape, State: escape}}})
		case "/metrics":
			fmt.Fprintf(w, "cleat_tunnel_up 1\n%s", escape)
		case "/v1/reload":
			w.WriteHeader(http.StatusInternalServerError)
			_ = json.NewEncoder(w).Encode(Error{Message: "no" + escape, Hint: "first\nsecond" + escape, Findings: []spec.Finding{{Message: escape}}})
		default:
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprint(w, escape)
		}
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
	all, err := List(t.Context())
	if err != nil || !slices.ContainsFunc(all, func(s Status) bool { return s.Name == id && s.UID == os.Getuid() }) {
		t.Errorf("listed as %+v, %v", all, err)
	}
	c, err := Dial(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if status, err := c.Status(t.Context()); err != nil || strings.Contains(fmt.Sprintf("%+v", status), "\x1b") {
		t.Errorf("status: %+v, %v", status, err)
	}
	if text, err := c.Metrics(t.Context()); err == nil || spec.Plain(err.Error()) != err.Error() {
		t.Errorf("metrics: %q, %v", text, err)
	}
	_, err = c.Reload(t.Context())
	var e *Error
	if !errors.As(err, &e) || e.Findings[0].Message != "?]0;pwned?" || spec.Plain(e.Message) != e.Message || e.Hint != "first\nsecond?]0;pwned?" {
		t.Errorf("reload: %q, %+v", err, e)
	}
	if err := c.Stop(t.Context()); err == nil || spec.Plain(err.Error()) != err.Error() {
		t.Errorf("stop: %q", err)
	}
}

// TestSquatted has another user's program use the name of a tunnel.
func TestSquatted(t *testing.T) {
	s := localsock.Socket{Kind: sockets, UID: os.Getuid() + 1, Name: testName(t)}
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := takenError(s); !errors.Is(err, ErrSquatted) || !strings.Contains(err.Error(), fmt.Sprintf("user %d", os.Getuid())) {
		t.Errorf("taken: %v", err)
	}
	if err := takenError(listenNamed(t, testName(t))); !errors.Is(err, ErrTaken) {
		t.Errorf("used by the own user: %v", err)
	}
}

// echoTarget is a Target that accepts everything and does nothing.
type echoTarget struct{ *fake }

func (echoTarget) SetPath(string, bool) error { return nil }
func (echoTarget) AddPath(p spec.Path) error {
	t := spec.Tunnel{Name: "t", Settings: spec.Settings{Port: spec.DefaultPort, Scheduler: spec.Adaptive}}
	_, err := t.CheckPath(p)
	return err
}
func (echoTarget) RemovePath(string) error { return tunnel.ErrNoPath }
func (echoTarget) Stop()                   {}

// FuzzRequest sends arbitrary requests: the answer must be a document with a reason, and
// printable.
func FuzzRequest(f *testing.F) {
	for _, r := range [][3]string{
		{"GET", "/v1/status", ""}, {"GET", "/metrics", ""}, {"POST", "/v1/paths/dsl", `{"state": "up"}`},
		{"PUT", "/v1/paths/x", `{"remote": "198.51.100.2:4755", "device": "eth0", "rate_bits_per_second": 1e99}`},
		{"PUT", "/v1/paths/%1b%5b2J", `{"remote": "\u001b[2J", "device": "\u001b", "local": "::1%\u001b"}`},
		{"PUT", "/v1/paths/%2e%2e", `{"weight": -1, "mtu_bytes": 99999999999}`},
		{"DELETE", "/v1/paths/x", ""}, {"POST", "/v1/reload", ""}, {"POST", "/v1/stop", ""}, {"BREW", "/../../x", "[[[[[[["},
	} {
		f.Add(r[0], r[1], r[2])
	}
	f.Fuzz(func(t *testing.T, method, target, body string) {
		r, err := http.NewRequest(method, "http://tunnel", strings.NewReader(body))
		if err != nil {
			t.Skip()
		}
		if r.URL, err = r.URL.Parse(target); err != nil || !strings.HasPrefix(r.URL.Path, "/") {
			t.Skip()
		}
		w := httptest.NewRecorder()
		handler(echoTarget{newFake("t")}).ServeHTTP(w, r)
		text := w.Body.Bytes()
		switch code := w.Code; {
		case code == http.StatusNoContent && len(text) == 0, code/100 == 3:
		case code == http.StatusOK && r.URL.Path == "/metrics":
		case code == http.StatusOK:
			if !json.Valid(text) {
				t.Errorf("%s %q: %q", method, target, text)
			}
		case code/100 == 4 || code == http.StatusInternalServerError:
			if e := readError(code, text); spec.Plain(e.Message) != e.Message || !json.Valid(text) {
				t.Errorf("%s %q: %d, %q", method, target, code, text)
			}
		default:
			t.Errorf("%s %q: %d, %q", method, target, code, text)
		}
	})
}

// FuzzAnswer decodes what a hostile server may answer.
func FuzzAnswer(f *testing.F) {
	f.Add(500, []byte(`{"error": "x", "hint": "y"}`))
	f.Add(200, []byte(`{"name": "x", "paths": [{"name": "\u001b"}]}`))
	f.Add(403, []byte("\x1b[2J"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if e := readError(status, body); spec.Plain(e.Message) != e.Message || spec.Plain(strings.ReplaceAll(e.Hint, "\n", "")) != strings.ReplaceAll(e.Hint, "\n", "") {
			t.Errorf("%q is shown as %+v", body, e)
		}
		_, _ = decode[Status](body, nil)
		_, _ = decode[Reloaded](body, nil)
	})
}
