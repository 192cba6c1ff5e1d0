package usernettest

import (
	"fmt"
	"net"

	"cleat/lab"
)

// stopCases: whoever is stopped for a while, nothing is lost.
func stopCases() []Case {
	const bytes = 32 << 20
	var cases []Case
	for _, d := range []Direction{Out, In} {
		for _, sends := range []string{"inside", "outside"} {
			for _, stopped := range []string{"helper", "sender", "receiver"} {
				c := Case{Name: fmt.Sprintf("stop/%s-%s-sends/%s", stopped, sends, d), Check: func(x *T, s *Env) {
					in, out := x.pair(s, d, V4)
					from, to, fromNode, toNode := in, out, s.Container, s.Outside
					if sends == "outside" {
						from, to, fromNode, toNode = out, in, s.Outside, s.Container
					}
					switch stopped {
					case "helper":
						stopWhileSending(x, s.Proc.PID(), from, to, bytes)
					case "receiver":
						stopReceiver(x, toNode, from, to, bytes)
					case "sender":
						stopSender(x, fromNode, from, to, bytes)
					}
				}}
				if stopped == "helper" {
					c.Needs = append(c.Needs, Helper)
				}
				if d == In {
					c.Needs = append(c.Needs, Inbound)
				}
				cases = append(cases, c)
			}
		}
	}
	return append(cases, Case{Name: "stop/helper-udp", Needs: []Ability{Helper}, Check: stopUDP})
}

// stopWhileSending stops a process in the middle of a transfer.
func stopWhileSending(x *T, pid int, from, to *net.TCPConn, bytes int64) {
	stopWhile(x, from, to, bytes, func() { x.freeze(pid) }, func() { x.thaw(pid) })
}

// stopWhile interrupts a transfer until it stands still, and then lets it go on.
func stopWhile(x *T, from, to *net.TCPConn, bytes int64, interrupt, resume func()) {
	p := &progress{Writer: from}
	sent := make(chan string, 1)
	failed := make(chan error, 1)
	go func() {
		sum, err := source(p, bytes, 10)
		from.CloseWrite()
		sent <- sum
		failed <- err
	}()
	// Nobody reads yet: the sender can't have finished.
	x.awaitMoved(p, 0)
	interrupt()
	x.awaitStalled(p)
	resume()
	n, got, err := sink(to)
	x.Must(err)
	want := <-sent
	x.Must(<-failed)
	if n != bytes || got != want {
		x.Fatalf("received %d bytes, SHA-256 %.8s…, sent %d, %.8s…", n, got, bytes, want)
	}
}

// stopReceiver gives the receiving socket to a process that is stopped.
func stopReceiver(x *T, n *lab.Node, from, to *net.TCPConn, bytes int64) {
	c := x.child(n, to, "sink")
	p := &progress{Writer: from}
	sent := make(chan string, 1)
	failed := make(chan error, 1)
	begin := make(chan struct{})
	go func() {
		<-begin
		sum, err := source(p, bytes, 11)
		from.CloseWrite()
		sent <- sum
		failed <- err
	}()
	x.freeze(c.PID())
	close(begin)
	x.awaitStalled(p)
	x.thaw(c.PID())
	got, err := c.sum()
	x.Must(err)
	want := <-sent
	x.Must(<-failed)
	if got != want {
		x.Fatalf("received SHA-256 %.8s…, sent %.8s…", got, want)
	}
}

// stopSender gives the sending socket to a process that is stopped.
func stopSender(x *T, n *lab.Node, from, to *net.TCPConn, bytes int64) {
	c := x.child(n, from, "source", fmt.Sprint(bytes), "12")
	x.Must(readable(to))
	x.freeze(c.PID())
	r := &progress{Writer: discard{}}
	type received struct {
		sum string
		err error
	}
	done := make(chan received, 1)
	go func() {
		_, sum, err := sink(teeReader{to, r})
		done <- received{sum, err}
	}()
	x.awaitStalled(r)
	x.thaw(c.PID())
	want, err := c.sum()
	x.Must(err)
	got := <-done
	x.Must(got.err)
	if got.sum != want {
		x.Fatalf("received SHA-256 %.8s…, sent %.8s…", got.sum, want)
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// teeReader shows to what it reads.
type teeReader struct {
	net.Conn
	to *progress
}

func (t teeReader) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.to.Write(b[:n])
	return n, err
}

// stopUDP: after the helper was stopped, datagrams flow again.
func stopUDP(x *T, s *Env) {
	server, to := x.udpServer(s, Out, V4)
	go echoUDP(server)
	c, err := x.dial(s.Container, "udp", to)
	x.Must(err)
	x.Must(x.echoed(c, 100))
	x.freeze(s.Proc.PID())
	for range 100 {
		c.Write(make([]byte, 1000))
	}
	x.thaw(s.Proc.PID())
	// Answers to the hundred come first, or are lost.
	c, err = x.dial(s.Container, "udp", to)
	x.Must(err)
	x.Must(x.echoed(c, 100))
	in, out := x.pair(s, Out, V4)
	x.Must(exchange(in, out))
}
