package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/internal/localsock"
)

// A helper may claim to be another one: what the kernel knows counts.
func TestListDoesNotBelieveHelpers(t *testing.T) {
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	liar := newFake("web; reboot")
	liar.info.UID, liar.info.PID = os.Getuid()+1, 1
	serve(t, s, liar)
	all, err := List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(i Info) bool { return i.Name == id })
	if i < 0 || all[i].UID != os.Getuid() || all[i].PID != os.Getpid() {
		t.Errorf("listed as %+v", all)
	}
	if slices.ContainsFunc(all, func(i Info) bool { return i.Name == "web; reboot" }) {
		t.Errorf("listed as what it claims: %+v", all)
	}
}

// countingTarget tells when it is asked.
type countingTarget struct {
	*fake
	asked func()
}

func (c countingTarget) Info() Info {
	defer c.asked()
	return c.fake.Info()
}

// Helpers that don't answer hide no other one.
func TestListDoesNotWaitForSilentHelpers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	asked := make(chan struct{})
	for i := range 16 {
		l, err := socketKind.Own(fmt.Sprintf("%s-silent-%d", name(t), i)).Listen()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() { // it says nothing until the honest helper was asked
			c, err := l.Accept()
			if err != nil {
				return
			}
			<-asked
			c.Close()
		}()
	}
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	serveTarget(t, s, countingTarget{newFake(id), sync.OnceFunc(func() { close(asked) })})
	all, err := List(ctx)
	if err != nil || !slices.ContainsFunc(all, func(i Info) bool { return i.Name == id }) {
		t.Errorf("listed %+v, %v", all, err)
	}
}

func serveTarget(t *testing.T, s *Server, target Target) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, target) }()
	t.Cleanup(func() { cancel(); <-ended })
}

func TestInTurn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root asks helpers of other users")
	}
	socket := func(uid int, name string) localsock.Socket {
		return localsock.Socket{Kind: socketKind, UID: uid, Name: name}
	}
	var got []string
	for _, s := range inTurn([]localsock.Socket{socket(1000, "a1"), socket(1000, "a2"), socket(1000, "a3"), socket(1001, "b1"), socket(0, "r1"), socket(0, "r2"), socket(1001, "b2")}) {
		got = append(got, s.Name)
	}
	if want := "r1 r2 a1 b1 a2 b2 a3"; strings.Join(got, " ") != want {
		t.Errorf("asked in the order %v, want %s", got, want)
	}
}

func TestOfProcess(t *testing.T) {
	own, other := os.Getuid(), os.Getuid()+1
	helper := func(name string, uid, pid, command int) Info {
		return Info{Name: name, UID: uid, PID: pid, Namespace: fmt.Sprintf("/proc/%d/ns/net", command)}
	}
	for _, c := range []struct {
		name string
		all  []Info
		want string
		err  error
	}{
		{"its own id", []Info{helper("a", own, 7, 8)}, "a", nil},
		{"its command's", []Info{helper("a", own, 5, 7)}, "a", nil},
		{"none", []Info{helper("a", own, 5, 6)}, "", ErrNotRunning},
		{"another user claims the command", []Info{helper("thief", other, 5, 7), helper("a", own, 6, 7)}, "a", nil},
		{"another user's helper", []Info{helper("b", other, 7, 8)}, "b", nil},
		{"another user's, and a claim", []Info{helper("thief", other, 5, 7), helper("b", other+1, 7, 8)}, "b", nil},
		{"two claims", []Info{helper("thief", other, 5, 7), helper("b", other+1, 6, 7)}, "", ErrAmbiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := ofProcess(c.all, 7); got.Name != c.want || !errors.Is(err, c.err) {
				t.Errorf("%q, %v; want %q, %v", got.Name, err, c.want, c.err)
			}
		})
	}
}

// FuzzClient: whatever a helper answers, the client reads it or says why not.
func FuzzClient(f *testing.F) {
	f.Add([]byte(`{"version":1,"info":{"name":"web","pid":1,"addresses":["192.0.2.1"]}}`))
	f.Add([]byte(`{"version":1,"error":{"kind":"request","message":"no\u001b[2J"}}`))
	f.Add([]byte(`{"version":1,"flows":[{"protocol":"tcp","source":"192.0.2.1:1"}],"stats":{},"forwards":[{}],"policy":""}`))
	f.Add([]byte("\x00\xff"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		for _, ask := range []func(*Client) error{
			func(c *Client) error { _, err := c.Info(t.Context()); return err },
			func(c *Client) error { _, err := c.Flows(t.Context()); return err },
			func(c *Client) error { _, err := c.Stats(t.Context()); return err },
			func(c *Client) error { _, err := c.AddForward(t.Context(), Forward{}); return err },
			func(c *Client) error { _, err := c.Policy(t.Context()); return err },
		} {
			pair, err := localsockPair()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				pair[1].Write(append(slices.Clone(answer), '\n'))
				pair[1].CloseWrite()
			}()
			c, _ := newClient(pair[0], nil)
			line, _, _ := bytes.Cut(answer, []byte("\n"))
			if err := ask(c); err == nil && !json.Valid(line) {
				t.Errorf("%q was taken for an answer", line)
			}
			pair[0].Close()
			pair[1].Close()
		}
	})
}

// localsockPair is a connection to itself.
func localsockPair() (pair [2]*net.UnixConn, err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix"}) // a free abstract name
	if err != nil {
		return pair, err
	}
	defer l.Close()
	if pair[0], err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err == nil {
		pair[1], err = l.AcceptUnix()
	}
	return pair, err
}
