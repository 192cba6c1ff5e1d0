package usernettest

import (
	"fmt"
	"io"
	"net"

	"cleat/lab"
)

// stopCases stop a process for a while; nothing may be lost.
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

// stopWhileSending stops a process during a transfer.
func stopWhileSending(x *T, pid int, from, to *net.TCPConn, bytes int64) {
	stopWhile(x, from, to, bytes, func() { x.freeze(pid) }, func() { x.thaw(pid) })
}

// stopWhile interrupts a transfer until it stalls, and then lets it continue.
func stopWhile(x *T, from, to *net.TCPConn, bytes int64, interrupt, resume func()) {
	st := startStream(from, bytes, 10)
	x.awaitMoved(&st.progress, 0) // the sender can't have finished, since nothing is read yet
	interrupt()
	x.awaitStalled(&st.progress)
	resume()
	x.Must(st.check(to))
}

// stopReceiver passes the receiving socket to a process that is stopped.
func stopReceiver(x *T, n *lab.Node, from, to *net.TCPConn, bytes int64) {
	c := x.child(n, to, "sink")
	x.freeze(c.PID())
	st := startStream(from, bytes, 11)
	x.awaitStalled(&st.progress)
	x.thaw(c.PID())
	got, err := c.sum()
	x.Must(err)
	want := <-st.done
	x.Must(want.err)
	if got != want.sum {
		x.Fatalf("received SHA-256 %.8s…, sent %.8s…", got, want.sum)
	}
}

// stopSender passes the sending socket to a process that is stopped.
func stopSender(x *T, n *lab.Node, from, to *net.TCPConn, bytes int64) {
	c := x.child(n, from, "source", fmt.Sprint(bytes), "12")
	x.Must(readable(to))
	x.freeze(c.PID())
	r := &progress{Writer: io.Discard}
	done := make(chan sent, 1)
	go func() {
		_, sum, err := sink(io.TeeReader(to, r))
		done <- sent{sum, err}
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

// stopUDP checks that datagrams are carried after the helper was stopped.
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
	// Answers to the hundred datagrams come first, or are lost.
	c, err = x.dial(s.Container, "udp", to)
	x.Must(err)
	x.Must(x.echoed(c, 100))
	in, out := x.pair(s, Out, V4)
	x.Must(exchange(in, out))
}
