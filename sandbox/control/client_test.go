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

// List returns what the kernel knows about a helper, whatever the helper claims.
func TestListVerifiesHelpers(t *testing.T) {
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
		t.Errorf("List returns %+v, want the kernel's name, user and process id", all)
	}
	if slices.ContainsFunc(all, func(i Info) bool { return i.Name == "web; reboot" }) {
		t.Errorf("List returns the name that the helper claims: %+v", all)
	}
}

// notifyingTarget calls queried when a client asks for its Info.
type notifyingTarget struct {
	*fake
	queried func()
}

func (n notifyingTarget) Info() Info {
	defer n.queried()
	return n.fake.Info()
}

// Silent helpers do not keep List from finding others.
func TestListSkipsSilentHelpers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	queried := make(chan struct{})
	for i := range 16 {
		l, err := socketKind.Own(fmt.Sprintf("%s-silent-%d", name(t), i)).Listen()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() { // silent until the other helper has been queried
			c, err := l.Accept()
			if err != nil {
				return
			}
			<-queried
			c.Close()
		}()
	}
	id := name(t)
	s, err := Listen(id)
	if err != nil {
		t.Fatal(err)
	}
	serveTarget(t, s, notifyingTarget{newFake(id), sync.OnceFunc(func() { close(queried) })})
	all, err := List(ctx)
	if err != nil || !slices.ContainsFunc(all, func(i Info) bool { return i.Name == id }) {
		t.Errorf("List returns %+v, %v, want the helper that answers", all, err)
	}
}

func serveTarget(t *testing.T, s *Server, target Target) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, target) }()
	t.Cleanup(func() { cancel(); <-ended })
}

func TestRoundRobin(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root queries helpers of other users")
	}
	socket := func(uid int, name string) localsock.Socket {
		return localsock.Socket{Kind: socketKind, UID: uid, Name: name}
	}
	var got []string
	for _, s := range roundRobin([]localsock.Socket{socket(1000, "a1"), socket(1000, "a2"), socket(1000, "a3"), socket(1001, "b1"), socket(0, "r1"), socket(0, "r2"), socket(1001, "b2")}) {
		got = append(got, s.Name)
	}
	if want := "r1 r2 a1 b1 a2 b2 a3"; strings.Join(got, " ") != want {
		t.Errorf("order %v, want %s", got, want)
	}
}

func TestFindByPID(t *testing.T) {
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
		{"process id of the helper", []Info{helper("a", own, 7, 8)}, "a", nil},
		{"process id of its command", []Info{helper("a", own, 5, 7)}, "a", nil},
		{"none", []Info{helper("a", own, 5, 6)}, "", ErrNotRunning},
		{"false claim of another user", []Info{helper("thief", other, 5, 7), helper("a", own, 6, 7)}, "a", nil},
		{"helper of another user", []Info{helper("b", other, 7, 8)}, "b", nil},
		{"helper of another user, and a claim", []Info{helper("thief", other, 5, 7), helper("b", other+1, 7, 8)}, "b", nil},
		{"conflicting claims", []Info{helper("thief", other, 5, 7), helper("b", other+1, 6, 7)}, "", ErrAmbiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := findByPID(c.all, 7); got.Name != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v, want %q, %v", got.Name, err, c.want, c.err)
			}
		})
	}
}

// The client parses any answer or returns an error.
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
			pair, err := unixPair()
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
				t.Errorf("the client accepts %q", line)
			}
			pair[0].Close()
			pair[1].Close()
		}
	})
}

// unixPair returns the two ends of a Unix connection.
func unixPair() (pair [2]*net.UnixConn, err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix"}) // the kernel chooses an abstract name
	if err != nil {
		return pair, err
	}
	defer l.Close()
	if pair[0], err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err == nil {
		pair[1], err = l.AcceptUnix()
	}
	return pair, err
}
