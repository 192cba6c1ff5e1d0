package keep_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/network/keep"
	"cleat/network/keep/client"
)

// A command is cancelled when its client ends, also if the client has sent more than its
// request.
func TestClientGone(t *testing.T) {
	w := newFakeHost(t)
	c := w.keep()
	began, why := make(chan bool), make(chan error)
	c.Answer = func(ctx context.Context, _ client.Request, _, _ io.Writer, _ *sync.WaitGroup) (int, bool) {
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
	w := newFakeHost(t)
	c := w.keep()
	release := make(chan bool)
	var done atomic.Bool
	c.Answer = func(_ context.Context, _ client.Request, _, _ io.Writer, background *sync.WaitGroup) (int, bool) {
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

// The number of clients that wait is bounded. Others run their command themselves.
func TestManyClients(t *testing.T) {
	w := newFakeHost(t)
	c := w.keep()
	release := make(chan bool)
	c.Answer = func(context.Context, client.Request, io.Writer, io.Writer, *sync.WaitGroup) (int, bool) {
		<-release
		return 0, true
	}
	stop, ended := w.run(c)
	defer func() { close(release); stop(); must(t, <-ended) }()
	const more = 1000
	declined := make(chan bool, more)
	for range more {
		conn := w.dial()
		go func() {
			answer := make([]byte, 32)
			_, err := conn.Write([]byte(request))
			if err == nil {
				_, err = conn.Read(answer)
			}
			declined <- err != nil || strings.Contains(string(answer), "declined")
		}()
	}
	for deadline := time.After(20 * time.Second); ; {
		select {
		case is := <-declined:
			if is { // the keeper closed the connection
				return
			}
		case <-deadline:
			t.Fatalf("%d clients wait at once", more)
		}
	}
}

// A command that only the keeper can run is accepted at once, and waits while many others run.
// Others hear nothing until it is their turn. A query is answered at once.
func TestExclusive(t *testing.T) {
	w := newFakeHost(t)
	c := w.keep()
	release, ran := make(chan bool), make(chan string, 100)
	c.Exclusive = func(args []string) bool { return args[0] == "net" }
	c.Unlimited = func(args []string) bool { return args[0] == "query" }
	c.Answer = func(_ context.Context, r client.Request, _, _ io.Writer, _ *sync.WaitGroup) (int, bool) {
		if r.Args[0] == "query" {
			return 0, true
		}
		ran <- r.Args[0]
		<-release
		return 0, true
	}
	stop, ended := w.run(c)
	defer func() { stop(); must(t, <-ended) }()
	const atOnce = 64
	for range atOnce {
		w.request()
		<-ran
	}
	waits := w.dial()
	_, err := waits.Write([]byte(request))
	must(t, err)
	conn := w.dial()
	_, err = conn.Write([]byte(`{"args":["net"]}`))
	must(t, err)
	answers := bufio.NewScanner(conn)
	if !answers.Scan() || answers.Text() != `{"state":"begun"}` {
		t.Fatalf("answered %q, %v", answers.Text(), answers.Err())
	}
	query := w.dial() // is answered while all others wait
	_, err = query.Write([]byte(`{"args":["query"]}`))
	must(t, err)
	lines := bufio.NewScanner(query)
	for lines.Scan() && lines.Text() != `{"state":"done"}` {
	}
	if lines.Text() != `{"state":"done"}` {
		t.Errorf("a query is answered %q, %v", lines.Text(), lines.Err())
	}
	must(t, waits.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if n, err := waits.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Error("more commands run than may")
	}
	close(release)
	for <-ran != "net" {
	}
	if !answers.Scan() || answers.Text() != `{"state":"done"}` {
		t.Errorf("answered %q, %v", answers.Text(), answers.Err())
	}
}

// A command that waits when the keeper ends is declined: nothing was done, so the client does it.
func TestExclusiveAtTheEnd(t *testing.T) {
	w := newFakeHost(t)
	c := w.keep()
	ran := make(chan bool, 100)
	c.Exclusive = func(args []string) bool { return args[0] == "net" }
	c.Answer = func(ctx context.Context, _ client.Request, _, _ io.Writer, _ *sync.WaitGroup) (int, bool) {
		ran <- true
		<-ctx.Done()
		return 1, true
	}
	stop, ended := w.run(c)
	const atOnce = 64
	for range atOnce {
		w.request()
		<-ran
	}
	conn := w.dial()
	_, err := conn.Write([]byte(`{"args":["net"]}`))
	must(t, err)
	answers := bufio.NewScanner(conn)
	for i, want := range []string{`{"state":"begun"}`, `{"state":"declined"}`} {
		if i == 1 {
			stop()
		}
		if !answers.Scan() || answers.Text() != want {
			t.Errorf("answered %q, %v, want %s", answers.Text(), answers.Err(), want)
		}
	}
	must(t, <-ended)
}

// A client that does not read its reply delays the keeper's end only for a moment.
func TestClientNeverReads(t *testing.T) {
	w := newFakeHost(t)
	c := w.keep()
	c.Answer = func(_ context.Context, _ client.Request, out, _ io.Writer, _ *sync.WaitGroup) (int, bool) {
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

// run runs a keeper in the namespaces of the test, which are those of its clients, until it
// is stopped.
func (w *fakeHost) run(c keep.Config) (stop func(), ended <-chan error) {
	ctx, cancel := context.WithCancel(w.t.Context())
	end := make(chan error, 1)
	go func() { end <- keep.Run(ctx, c) }()
	<-w.tell
	return cancel, end
}

// dial connects to the keeper's socket.
func (w *fakeHost) dial() *net.UnixConn {
	w.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: w.store.Path("keeper.socket"), Net: "unix"})
	must(w.t, err)
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// request is a client's message.
const request = `{"args":["attach"]}`

// request sends a request, which the keeper begins. The client then reads answers.
func (w *fakeHost) request() (conn *net.UnixConn, answers *bufio.Scanner) {
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
