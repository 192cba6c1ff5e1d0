package keep_test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/keep"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeHost is a host with containers that tests start and stop.
type fakeHost struct {
	t     *testing.T
	host  *netns.NS
	store *attach.Store
	tell  chan func() // the function that a keeper wants called when a container starts

	mu      sync.Mutex
	running map[string]*netns.NS
	pids    map[string]int
	stuck   map[string]chan struct{} // closed when the engine of a container answers
	asked   int
	log     []string
}

func newFakeHost(t *testing.T) *fakeHost {
	t.Helper()
	lab.Need(t)
	w := &fakeHost{t: t, tell: make(chan func(), 8), running: map[string]*netns.NS{}, pids: map[string]int{}, stuck: map[string]chan struct{}{}}
	w.host = w.namespace("host")
	_, err := link.Create(w.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br0"}}, link.Target{})
	must(t, err)
	br0, err := link.Find(w.host, "br0")
	must(t, err)
	must(t, br0.Up())
	w.store, err = attach.OpenStore(filepath.Join(t.TempDir(), "state"))
	must(t, err)
	return w
}

func (w *fakeHost) namespace(name string) *netns.NS {
	w.t.Helper()
	ns, err := netns.New(name)
	must(w.t, err)
	w.t.Cleanup(func() { ns.Close() })
	return ns
}

// start starts a container. pid is 0 for one without a process.
func (w *fakeHost) start(name string, pid int) {
	ns := w.namespace(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[name], w.pids[name] = ns, pid
}

func (w *fakeHost) stop(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[name].Close()
	delete(w.running, name)
}

func (w *fakeHost) find(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
	name := strings.TrimPrefix(ref, "docker:")
	w.mu.Lock()
	stuck := w.stuck[name]
	w.asked++
	w.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ns := w.running[name]
	if ns == nil {
		return attach.Container{}, nil, netns.ErrNotFound
	}
	own, err := netns.Open(ns.Path())
	return attach.Container{Ref: ref, Engine: "docker", Name: name, PID: w.pids[name], Path: ns.Path()}, own, err
}

func (w *fakeHost) config() attach.Config { return attach.Config{Store: w.store, Find: w.find} }

func (w *fakeHost) attach(name, ip string) {
	w.t.Helper()
	must(w.t, w.host.Do(func() error {
		_, err := attach.Attach(w.t.Context(), w.config(), name, attach.Spec{
			Kind: "bridge", Parent: "br0", Addresses: []netip.Prefix{netip.MustParsePrefix(ip)}, Keep: true})
		return err
	}))
}

func (w *fakeHost) keep() keep.Config {
	return keep.Config{Attach: w.config(),
		Log: func(format string, args ...any) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.log = append(w.log, fmt.Sprintf(format, args...))
		},
		Listen: func(ctx context.Context, tell func()) error {
			w.tell <- tell
			<-ctx.Done()
			return nil
		}}
}

// keeper runs a keeper until the test ends or stop is called.
func (w *fakeHost) keeper(c keep.Config) (tell func(), stop func() error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.host.Do(func() error { return keep.Run(ctx, c) }) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	w.t.Cleanup(func() {
		if err := stop(); err != nil {
			w.t.Error(err)
		}
	})
	select {
	case tell = <-w.tell:
	case <-time.After(5 * time.Second):
		w.t.Fatal("the keeper did not start to listen")
	}
	return tell, stop
}

func (w *fakeHost) status(name string) attach.Status {
	w.t.Helper()
	var all []attach.Status
	must(w.t, w.host.Do(func() error {
		all, _ = attach.List(w.t.Context(), w.store) // of those that can be read
		return nil
	}))
	for _, s := range all {
		if s.Container.Name == name {
			return s
		}
	}
	return attach.Status{Attachment: &attach.Attachment{}}
}

// attached waits until a container has its link, and returns how long that took.
func (w *fakeHost) attached(name string, within time.Duration) time.Duration {
	w.t.Helper()
	return w.eventually(name+" is attached", within, func() bool { return w.status(name).State == attach.Attached })
}

func (w *fakeHost) eventually(condition string, within time.Duration, f func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !f() {
		if time.Since(began) > within {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("not within %s: %s; the keeper logged %q", within, condition, w.log)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// soon is shorter than any polling interval: what happens within it was caused by an
// event.
const soon = 1500 * time.Millisecond
