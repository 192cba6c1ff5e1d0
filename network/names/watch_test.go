package names

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"cleat/dns"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
)

var learned = dns.Learned{Name: "www.example", Addrs: addrs("203.0.113.1"), TTL: 300 * time.Second}

// pipe adds a watcher and returns the controller's end of its connection.
func pipe(w *watchers, networks ...string) (*watcher, net.Conn) {
	ours, theirs := net.Pipe()
	return w.add(ours, networks), theirs
}

// An answer waits for the acknowledgement of each watcher of the network.
func TestTellWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchers
		one, _ := pipe(&w)
		two, _ := pipe(&w, "shop")
		other, _ := pipe(&w, "office")
		start := time.Now()
		go func() {
			time.Sleep(30 * time.Millisecond)
			w.acknowledged(one, 1)
			time.Sleep(50 * time.Millisecond)
			w.acknowledged(two, 1)
		}()
		w.tell(t.Context(), "shop", netip.Addr{}, learned)
		if took := time.Since(start); took != 80*time.Millisecond {
			t.Errorf("the answer waited for %v", took)
		}
		if len(one.out) != 1 || len(two.out) != 1 || len(other.out) != 0 {
			t.Errorf("events: %d, %d, %d", len(one.out), len(two.out), len(other.out))
		}
		if w.events != 2 || w.late != 0 {
			t.Errorf("%d events, %d late", w.events, w.late)
		}
	})
}

// A watcher that does not acknowledge delays one answer, and no other until it has caught up.
func TestTellGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchers
		o, _ := pipe(&w)
		took := func() time.Duration {
			start := time.Now()
			w.tell(t.Context(), "shop", netip.Addr{}, learned)
			return time.Since(start)
		}
		if d := took(); d != ackWithin {
			t.Errorf("the first answer waited for %v", d)
		}
		if d := took(); d != 0 {
			t.Errorf("the second answer waited for %v", d)
		}
		w.acknowledged(o, 1)
		if d := took(); d != 0 {
			t.Errorf("an answer waited for %v though the watcher is behind", d)
		}
		w.acknowledged(o, 3)
		time.AfterFunc(20*time.Millisecond, func() { w.acknowledged(o, 4) })
		if d := took(); d != 20*time.Millisecond {
			t.Errorf("the answer after it has caught up waited for %v", d)
		}
		if w.late != 3 {
			t.Errorf("%d late answers", w.late)
		}
		// The end of the watcher, and that of the server, end the wait.
		time.AfterFunc(20*time.Millisecond, func() { w.remove(o) })
		if d := took(); d != 20*time.Millisecond {
			t.Errorf("an answer waited for %v for a watcher that has gone", d)
		}
		pipe(&w)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		w.tell(ctx, "shop", netip.Addr{}, learned)
		if d := time.Since(start); d != 10*time.Millisecond {
			t.Errorf("an answer waited for %v after the end of the server", d)
		}
	})
}

// A watcher that is too far behind is disconnected.
func TestTellDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchers
		o, theirs := pipe(&w)
		o.behind = true
		for range maxBehind {
			w.tell(t.Context(), "shop", netip.Addr{}, learned)
		}
		gone := make(chan error, 1)
		go func() {
			_, err := theirs.Read(make([]byte, 1))
			gone <- err
		}()
		synctest.Wait()
		if len(gone) > 0 {
			t.Fatal("it is disconnected too early")
		}
		w.tell(t.Context(), "shop", netip.Addr{}, learned)
		synctest.Wait()
		if len(gone) == 0 {
			t.Error("it is still connected")
			theirs.Close()
		}
	})
}

// A watcher that acknowledges more than it has received can't block the server.
func TestEarlyAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchers
		o, _ := pipe(&w)
		o.behind = true
		for range 2 * maxBehind {
			w.tell(t.Context(), "shop", netip.Addr{}, learned)
			w.acknowledged(o, 1<<62)
			o.behind = true
		}
	})
}

// The watcher has the addresses before the client, whichever way the client asks.
func TestWatch(t *testing.T) {
	needLoopback(t)
	startUpstream(t, resolver)
	c, path := start(t, "nameserver 127.0.0.53\n")
	open := shop
	open.NoForward = false
	must(t, c.Replace(t.Context(), open))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
	w, err := Watch(t.Context(), path, "Shop")
	must(t, err)
	defer w.Close()
	got := make(chan Learned, 10)
	proceed := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context(), func(l Learned) { got <- l; <-proceed }) }()
	for _, network := range []string{"udp", "tcp"} {
		answer := make(chan string, 1)
		go func() { answer <- exchange(t, network, "WWW.Example", dnsmessage.TypeA) }()
		want := Learned{"shop", netip.MustParseAddr("127.0.0.1"), "www.example", addrs("203.0.113.1"), 300}
		if d := cmp.Diff(want, <-got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Errorf("%s: %s", network, d)
		}
		select {
		case a := <-answer:
			t.Errorf("%s: the client had the answer first: %s", network, a)
		case <-time.After(50 * time.Millisecond):
		}
		proceed <- struct{}{}
		if a := <-answer; a != "Success, 203.0.113.1" {
			t.Errorf("%s: %s", network, a)
		}
	}
	// Own names, and answers without addresses, are not reported, and wait for nobody.
	for name, want := range map[string]string{"web": "Success, 192.0.2.10", "no.such": "NameError"} {
		if a := exchange(t, "udp", name, dnsmessage.TypeA); a != want || len(got) > 0 {
			t.Errorf("%s: %s; %d reported", name, a, len(got))
		}
	}
	state, err := c.State(t.Context())
	must(t, err)
	if state.Watchers != 1 || state.Learned != 2 || state.Late != 0 {
		t.Errorf("%d watchers, %d events, %d late", state.Watchers, state.Learned, state.Late)
	}
	w.Close()
	if err := <-ended; !errors.Is(err, ErrNotRunning) {
		t.Errorf("Run returned %v", err)
	}
	waitFor(t, "the end of the watcher", func() bool {
		state, err := c.State(t.Context())
		must(t, err)
		return state.Watchers == 0
	})
}

// Run returns the context's error, and the server's end.
func TestWatcherEnds(t *testing.T) {
	needLoopback(t)
	_, path := start(t, "")
	w, err := Watch(t.Context(), path)
	must(t, err)
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := w.Run(ctx, func(Learned) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
}

// A line that is no acknowledgement ends the subscription, and not the server.
func TestWatcherTalksNonsense(t *testing.T) {
	needLoopback(t)
	c, path := start(t, "")
	conn, err := net.Dial("unix", path)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = conn.Write([]byte(`{"version":1,"do":"watch"}` + "\n" + "nonsense\n"))
	must(t, err)
	in := bufio.NewScanner(conn)
	var a response
	if !in.Scan() || json.Unmarshal(in.Bytes(), &a) != nil || a.Error != nil {
		t.Errorf("answer %s", in.Bytes())
	}
	if in.Scan() {
		t.Errorf("then %s", in.Bytes())
	}
	if _, err := c.State(t.Context()); err != nil {
		t.Error(err)
	}
}
