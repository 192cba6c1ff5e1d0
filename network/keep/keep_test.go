package keep_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/keep"
	"cleat/network/segment"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a host with containers that tests start and stop.
type world struct {
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

func newWorld(t *testing.T) *world {
	t.Helper()
	lab.Need(t)
	w := &world{t: t, tell: make(chan func(), 8), running: map[string]*netns.NS{}, pids: map[string]int{}, stuck: map[string]chan struct{}{}}
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

func (w *world) namespace(name string) *netns.NS {
	w.t.Helper()
	ns, err := netns.New(name)
	must(w.t, err)
	w.t.Cleanup(func() { ns.Close() })
	return ns
}

// start starts a container. pid is 0 for one without a process.
func (w *world) start(name string, pid int) {
	ns := w.namespace(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[name], w.pids[name] = ns, pid
}

func (w *world) stop(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[name].Close()
	delete(w.running, name)
}

func (w *world) find(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
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

func (w *world) config() attach.Config { return attach.Config{Store: w.store, Find: w.find} }

func (w *world) attach(name, ip string) {
	w.t.Helper()
	must(w.t, w.host.Do(func() error {
		_, err := attach.Attach(w.t.Context(), w.config(), name, attach.Spec{
			Kind: "bridge", Parent: "br0", Addresses: []netip.Prefix{netip.MustParsePrefix(ip)}, Keep: true})
		return err
	}))
}

func (w *world) keep() keep.Config {
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
func (w *world) keeper(c keep.Config) (tell func(), stop func() error) {
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

func (w *world) status(name string) attach.Status {
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
func (w *world) attached(name string, within time.Duration) time.Duration {
	w.t.Helper()
	return w.eventually(name+" is attached", within, func() bool { return w.status(name).State == attach.Attached })
}

func (w *world) eventually(condition string, within time.Duration, f func() bool) time.Duration {
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

// A container that restarts is attached at once: because its engine reports the start, or
// because its first process has ended.
func TestRestart(t *testing.T) {
	t.Parallel() // it waits most of the time
	w := newWorld(t)
	process := exec.Command("sleep", "1000")
	must(t, process.Start())
	w.start("web", process.Process.Pid)
	w.attach("web", "192.0.2.10/24")
	tell, _ := w.keeper(w.keep())
	w.stop("web")
	must(t, process.Process.Kill())
	process.Wait()
	time.Sleep(8500 * time.Millisecond) // by now it is looked for every few seconds
	w.mu.Lock()
	if w.asked > 100 { // some 30
		t.Errorf("the container was looked for %d times", w.asked)
	}
	w.mu.Unlock()
	w.start("web", 0)
	tell()
	t.Logf("attached %s after its engine's event", w.attached("web", soon))
	w.eventually("its last action is reported", soon, func() bool {
		r := w.status("web").Keeper
		return r != nil && strings.HasPrefix(r.Action, "attached again") && !r.ActionTime.IsZero()
	})
}

// A container is looked for when its first process ends, whatever engines report.
func TestInitProcessEnds(t *testing.T) {
	w := newWorld(t)
	process := exec.Command("sleep", "1000")
	must(t, process.Start())
	w.start("web", process.Process.Pid)
	w.attach("web", "192.0.2.10/24")
	w.keeper(w.keep())
	w.eventually("it is attached", soon, func() bool { return w.status("web").State == attach.Attached })
	time.Sleep(100 * time.Millisecond)
	w.stop("web")
	w.start("web", 0)
	must(t, process.Process.Kill())
	process.Wait()
	t.Logf("attached %s after its end", w.attached("web", soon))
}

// A link that somebody removed is recreated at once, and after pauses if it is removed
// again and again.
func TestRemoved(t *testing.T) {
	w := newWorld(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	w.keeper(w.keep())
	time.Sleep(200 * time.Millisecond) // until the namespace has a number
	remove := func() {
		t.Helper()
		eth0, err := link.Find(w.running["web"], "eth0")
		must(t, err)
		must(t, eth0.Close())
	}
	for i, least := range []time.Duration{0, 0, 900 * time.Millisecond} {
		before := w.status("web").Index
		began := time.Now()
		remove()
		w.eventually("it is recreated", soon+least, func() bool { s := w.status("web"); return s.State == attach.Attached && s.Index != before })
		if took := time.Since(began); took < least || least == 0 && took > soon {
			t.Errorf("removal %d: recreated after %s", i+1, took)
		}
		time.Sleep(50 * time.Millisecond)
	}
	must(t, w.host.Do(func() error { _, _, err := attach.Detach(t.Context(), w.config(), "web", "eth0"); return err }))
	time.Sleep(300 * time.Millisecond)
	if s := w.status("web"); s.State != "" {
		t.Errorf("state %s after it was detached", s.State)
	}
}

// An engine that does not answer delays no other attachment.
func TestStuckEngine(t *testing.T) {
	w := newWorld(t)
	stuck := make(chan struct{})
	for i, name := range []string{"web", "db"} {
		w.start(name, 0)
		w.attach(name, fmt.Sprintf("192.0.2.%d/24", 10+i))
		w.stop(name)
	}
	w.stuck["web"] = stuck
	tell, stop := w.keeper(w.keep())
	w.start("db", 0)
	w.start("web", 0)
	tell()
	w.attached("db", soon)
	if s := w.status("web").State; s != attach.Gone {
		t.Errorf("web is %s", s)
	}
	close(stuck)
	w.attached("web", soon)
	must(t, stop())
}

// Unreadable files are logged once, and damaged journals reported. Other attachments are
// kept.
func TestUnreadable(t *testing.T) {
	w := newWorld(t)
	for i, name := range []string{"web", "db", "cut"} {
		w.start(name, 0)
		w.attach(name, fmt.Sprintf("192.0.2.%d/24", 10+i))
	}
	find := func(pattern string) string {
		t.Helper()
		all, err := filepath.Glob(w.store.Path(pattern))
		must(t, err)
		if len(all) != 1 {
			t.Fatalf("%s: %q", pattern, all)
		}
		return all[0]
	}
	must(t, os.Remove(find("run/*/live/docker.web.eth0")))
	file := find("attachments/docker.web.eth0.json")
	must(t, os.WriteFile(file, nil, 0o644))
	must(t, os.Truncate(find("run/*/live/docker.cut.eth0"), 0))
	w.stop("db")
	tell, _ := w.keeper(w.keep())
	w.start("db", 0)
	tell()
	w.attached("db", soon)
	w.eventually("the damaged journal is reported", soon, func() bool {
		r := w.status("cut").Keeper
		return r != nil && strings.Contains(r.Error, "is damaged")
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := strings.Join(w.log, "\n"); strings.Count(text, "not kept: ") != 1 || !strings.Contains(text, file) {
		t.Errorf("the keeper logged %q", w.log)
	}
}

// A file that becomes unreadable while a keeper runs is logged. Once it can be read
// again, the attachment is kept.
func TestUnreadableMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	tell, stop := w.keeper(w.keep())
	file := w.store.Path("attachments", "docker.web.eth0.json")
	must(t, os.Rename(file, file+".old"))
	must(t, os.WriteFile(file+".new", []byte("{"), 0o644))
	must(t, os.Rename(file+".new", file))
	w.eventually("it is logged", soon, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Contains(strings.Join(w.log, "\n"), "not kept: ")
	})
	must(t, os.Rename(file+".old", file))
	w.stop("web")
	w.start("web", 0)
	tell()
	w.attached("web", soon)
	must(t, stop())
}

// A command is cancelled when its client ends, also if the client has sent more than its
// request.
func TestClientGone(t *testing.T) {
	w := newWorld(t)
	c := w.keep()
	began, why := make(chan bool), make(chan error)
	c.Answer = func(ctx context.Context, _ keep.Request, _, _ io.Writer, _ *sync.WaitGroup) (int, bool) {
		began <- true
		<-ctx.Done()
		why <- context.Cause(ctx)
		return 1, true
	}
	cancel, ended := w.run(c)
	defer func() { cancel(); must(t, <-ended) }()
	conn, _ := w.request()
	<-began
	_, err := conn.Write([]byte(request))
	must(t, err)
	must(t, conn.Close())
	select {
	case err := <-why:
		t.Logf("stopped: %v", err)
	case <-time.After(10 * time.Second):
		cancel()
		t.Errorf("the command was not cancelled; later: %v", <-why)
	}
}

// A keeper that is stopped waits for work that a command left to the background.
func TestBackground(t *testing.T) {
	w := newWorld(t)
	c := w.keep()
	release := make(chan bool)
	var done atomic.Bool
	c.Answer = func(_ context.Context, _ keep.Request, _, _ io.Writer, background *sync.WaitGroup) (int, bool) {
		background.Go(func() { <-release; done.Store(true) })
		return 0, true
	}
	stop, ended := w.run(c)
	if _, answers := w.request(); !answers.Scan() || answers.Text() != `{"state":"done"}` {
		t.Errorf("answered %q, %v", answers.Text(), answers.Err())
	}
	stop()
	time.AfterFunc(100*time.Millisecond, func() { close(release) })
	if must(t, <-ended); !done.Load() {
		t.Error("the keeper did not wait")
	}
}

// run runs a keeper in the namespaces of the test, which are those of its clients, until it
// is stopped.
func (w *world) run(c keep.Config) (stop func(), ended <-chan error) {
	ctx, cancel := context.WithCancel(w.t.Context())
	end := make(chan error, 1)
	go func() { end <- keep.Run(ctx, c) }()
	<-w.tell
	return cancel, end
}

// dial connects to the keeper's socket.
func (w *world) dial() *net.UnixConn {
	w.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: w.store.Path("keeper.socket"), Net: "unix"})
	must(w.t, err)
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// request is a client's message.
const request = `{"args":["attach"]}`

// request sends a request, which the keeper begins. The client then reads answers.
func (w *world) request() (conn *net.UnixConn, answers *bufio.Scanner) {
	w.t.Helper()
	conn = w.dial()
	_, err := conn.Write([]byte(request))
	must(w.t, err)
	answers = bufio.NewScanner(conn)
	if !answers.Scan() || answers.Text() != `{"state":"begun"}` {
		w.t.Fatalf("answered %q, %v", answers.Text(), answers.Err())
	}
	return conn, answers
}

// Addresses are announced a second time, 2 s after the first (RFC 5227 section 2.3).
func TestAnnouncedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	br0, err := link.Find(w.host, "br0")
	must(t, err)
	s, err := segment.Open(segment.Of(br0, nil), unix.ETH_P_ARP, nil)
	must(t, err)
	defer s.Close()
	w.keeper(w.keep())
	began := time.Now()
	buf := make([]byte, 1500)
	for {
		n, _, err := s.Receive(t.Context(), buf, began.Add(5*time.Second))
		if err != nil {
			t.Fatalf("no announcement: %v", err)
		}
		if sender, _ := netip.AddrFromSlice(buf[14:18]); n >= 28 && sender == netip.MustParseAddr("192.0.2.10") && time.Since(began) > time.Second {
			t.Logf("announced after %s", time.Since(began))
			return
		}
	}
}

// A state directory has one keeper. Another one waits if it is configured to.
func TestOne(t *testing.T) {
	w := newWorld(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	_, stop := w.keeper(w.keep())
	if err := w.host.Do(func() error { return keep.Run(t.Context(), w.keep()) }); !errors.Is(err, keep.ErrRunning) {
		t.Errorf("a second keeper: %v", err)
	}
	if s := keep.StateOf(w.store); !s.Running || s.PID != os.Getpid() {
		t.Errorf("state %+v, want that it runs", s)
	}
	other := newWorld(t)
	other.start("web", 0)
	other.attach("web", "192.0.2.10/24")
	other.keeper(other.keep())

	ready := make(chan bool, 2)
	c := w.keep()
	c.Wait, c.Ready = true, func(waiting bool) { ready <- waiting }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.host.Do(func() error { return keep.Run(ctx, c) }) }()
	if !<-ready {
		t.Error("the second keeper does not wait")
	}
	must(t, stop())
	if <-ready {
		t.Error("the second keeper still waits")
	}
	cancel()
	must(t, <-ended)
}

// The state shows a keeper from before its process starts until it ends.
func TestState(t *testing.T) {
	w := newWorld(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	if s := keep.StateOf(w.store); s != (keep.State{}) {
		t.Errorf("state before the first keeper: %+v", s)
	}
	must(t, keep.Starting(w.store))
	if s := keep.StateOf(w.store); s != (keep.State{Starting: true}) {
		t.Errorf("state while a keeper is being started: %+v", s)
	}
	_, stop := w.keeper(w.keep())
	if s := keep.StateOf(w.store); s != (keep.State{Running: true, PID: os.Getpid()}) {
		t.Errorf("state with a keeper: %+v", s)
	}
	if err := keep.Starting(w.store); !errors.Is(err, keep.ErrRunning) {
		t.Errorf("starting a second keeper: %v", err)
	}
	must(t, stop())
	if s := keep.StateOf(w.store); s != (keep.State{}) {
		t.Errorf("state after the keeper's end: %+v", s)
	}

	must(t, keep.Starting(w.store))
	long := time.Now().Add(-time.Minute)
	must(t, os.Chtimes(w.store.Path("keeper.lock"), long, long))
	if s := keep.StateOf(w.store); s != (keep.State{}) {
		t.Errorf("state a minute after a keeper should have started: %+v", s)
	}
}

// Reading the state does not prevent a keeper from starting.
func TestStateWhileStarting(t *testing.T) {
	w := newWorld(t)
	asking, done := context.WithCancel(t.Context())
	var askers sync.WaitGroup
	askers.Go(func() {
		for asking.Err() == nil {
			keep.StateOf(w.store)
		}
	})
	for range 200 {
		if err := keep.Starting(w.store); err != nil {
			t.Error(err)
			break
		}
	}
	done()
	askers.Wait()
}

// A keeper with UntilIdle ends when nothing is left to keep.
func TestIdle(t *testing.T) {
	w := newWorld(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	c := w.keep()
	c.UntilIdle = true
	ended := make(chan error, 1)
	go func() { ended <- w.host.Do(func() error { return keep.Run(t.Context(), c) }) }()
	<-w.tell
	select {
	case err := <-ended:
		t.Fatalf("the keeper has ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	must(t, w.host.Do(func() error { _, _, err := attach.Detach(t.Context(), w.config(), "web", "eth0"); return err }))
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(5 * time.Second):
		t.Error("the keeper does not end")
	}
}

// The number of clients that are served at the same time is bounded. Others run their
// command themselves.
func TestManyClients(t *testing.T) {
	w := newWorld(t)
	c := w.keep()
	release := make(chan bool)
	c.Answer = func(context.Context, keep.Request, io.Writer, io.Writer, *sync.WaitGroup) (int, bool) {
		<-release
		return 0, true
	}
	stop, ended := w.run(c)
	defer func() { close(release); stop(); must(t, <-ended) }()
	const more = 1000
	for range more {
		conn := w.dial()
		_, err := conn.Write([]byte(request))
		answer := make([]byte, 32)
		if err == nil {
			_, err = conn.Read(answer)
		}
		if err != nil { // the keeper closed the connection
			return
		}
	}
	t.Errorf("%d clients are served at once", more)
}

// A client that does not read its reply delays the keeper's end only for a moment.
func TestClientNeverReads(t *testing.T) {
	w := newWorld(t)
	c := w.keep()
	c.Answer = func(_ context.Context, _ keep.Request, out, _ io.Writer, _ *sync.WaitGroup) (int, bool) {
		out.Write(make([]byte, 16<<20)) // more than a socket holds
		return 0, true
	}
	stop, ended := w.run(c)
	w.request()
	stop()
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the keeper waits for a client that does not read")
	}
}
