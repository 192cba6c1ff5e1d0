package names

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"cleat/dns"
)

const (
	// ackWithin is the longest time that an answer waits for watchers. Clients ask again
	// after 5 s; setting an element of a firewall's set takes less than 1 ms.
	ackWithin = time.Second
	// maxBehind is the number of addresses that a watcher may be behind.
	maxBehind = 1024
)

// Learned says that a client is about to learn the addresses of a foreign name.
type Learned struct {
	Network    string       `json:"network"` // the one that forwarded the query
	Client     netip.Addr   `json:"client"`  // as seen by the socket
	Name       string       `json:"name"`    // as queried, in lower case and without the final dot
	Addrs      []netip.Addr `json:"addrs"`
	TTLSeconds int64        `json:"ttl_seconds"`
}

// event is a line to a watcher, and ack is one from it. An acknowledgement is for all events
// up to its number.
type (
	event struct {
		Seq     uint64  `json:"seq"`
		Learned Learned `json:"learned"`
	}
	ack struct {
		Ack uint64 `json:"ack"`
	}
)

// watchers are the controllers that receive learned addresses.
type watchers struct {
	mu     sync.Mutex
	all    []*watcher
	events uint64 // sent, to any of them
	late   uint64 // answers that did not wait for every watcher's acknowledgement
}

// watcher is one of them. Its fields are guarded by watchers.mu.
type watcher struct {
	networks []string // none means all
	conn     net.Conn
	out      chan event // has room for all of pending
	seq      uint64
	pending  []pending // events without acknowledgement
	behind   bool      // an answer did not wait; none waits until pending is empty
}

type pending struct {
	seq  uint64
	done chan struct{}
}

// add adds a watcher. conn is closed if it is too far behind.
func (w *watchers) add(conn net.Conn, networks []string) *watcher {
	o := &watcher{networks: networks, conn: conn, out: make(chan event, maxBehind)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, o)
	return o
}

// remove removes a watcher. Answers no longer wait for it.
func (w *watchers) remove(o *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = slices.DeleteFunc(w.all, func(other *watcher) bool { return other == o })
	o.acknowledge(o.seq)
}

// acknowledged marks all events up to seq as handled.
func (w *watchers) acknowledged(o *watcher, seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o.acknowledge(seq)
}

func (o *watcher) acknowledge(seq uint64) {
	for len(o.pending) > 0 && o.pending[0].seq <= seq {
		close(o.pending[0].done)
		o.pending = o.pending[1:]
	}
	o.behind = o.behind && len(o.pending) > 0
}

// tell sends what a client of a network is about to learn to the watchers, and waits for
// their acknowledgements.
func (w *watchers) tell(ctx context.Context, network string, client netip.Addr, l dns.Learned) {
	waiting := w.send(Learned{network, client, l.Name, l.Addrs, int64(l.TTL / time.Second)})
	if len(waiting) == 0 {
		return
	}
	timer := time.NewTimer(ackWithin)
	defer timer.Stop()
	for o, done := range waiting {
		select {
		case <-done:
			delete(waiting, o)
		case <-ctx.Done():
			return
		case <-timer.C:
			w.missed(waiting)
			return
		}
	}
}

// send queues an event, and returns the acknowledgements to wait for.
func (w *watchers) send(l Learned) map[*watcher]chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := map[*watcher]chan struct{}{}
	late := false
	for _, o := range w.all {
		if len(o.networks) > 0 && !slices.Contains(o.networks, l.Network) {
			continue
		}
		done := o.queue(l)
		if done == nil {
			late = true
			continue
		}
		w.events++
		if o.behind {
			late = true
			continue
		}
		waiting[o] = done
	}
	if late {
		w.late++
	}
	return waiting
}

// queue queues an event and returns its acknowledgement. If the watcher is too far behind,
// queue closes its connection and returns nil.
func (o *watcher) queue(l Learned) chan struct{} {
	if len(o.pending) < maxBehind {
		select {
		case o.out <- event{o.seq + 1, l}:
			o.seq++
			p := pending{o.seq, make(chan struct{})}
			o.pending = append(o.pending, p)
			return p.done
		default: // it acknowledges what it has not received
		}
	}
	o.conn.Close() // its goroutines notice
	return nil
}

// missed marks the watchers that have not acknowledged in time.
func (w *watchers) missed(waiting map[*watcher]chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late++
	for o, done := range waiting {
		select {
		case <-done:
		default:
			o.behind = true
		}
	}
}

// serve sends events to a watcher until it hangs up, is too far behind, or ctx ends.
func (w *watchers) serve(ctx context.Context, o *watcher, in *lines) {
	defer w.remove(o)
	ctx, stop := context.WithCancel(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer o.conn.Close() // ends the reader
	defer stop()
	reader.Go(func() {
		defer stop()
		for {
			line, err := in.next()
			var a ack
			if err != nil || json.Unmarshal(line, &a) != nil {
				return
			}
			w.acknowledged(o, a.Ack)
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-o.out:
			if sendLine(o.conn, e) != nil {
				return
			}
		}
	}
}

// Watcher receives learned addresses. It is not safe for concurrent use, except for Close.
type Watcher struct {
	conn *net.UnixConn
	in   *bufio.Scanner
}

// Watch subscribes to the learned addresses of networks, or of all if there are none. They
// need not exist yet. When Watch returns, no client learns an address before Run has reported
// it. The caller must call Run soon, and Close.
func Watch(ctx context.Context, path string, networks ...string) (*Watcher, error) {
	c, err := Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	if _, err := c.do(ctx, request{Do: opWatch, Networks: networks}, nil); err != nil {
		c.Close()
		return nil, err
	}
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		c.Close()
		return nil, err
	}
	return &Watcher{c.conn, c.in}, nil
}

// Run calls learn for each learned address, in order, and acknowledges when learn has
// returned. The client's answer waits for that, so learn should return within milliseconds.
// Run returns when ctx ends, with its error, or when the server has ended or has dropped this
// watcher because it was too far behind. The caller then must assume that clients have
// learned addresses that were not reported.
func (w *Watcher) Run(ctx context.Context, learn func(Learned)) error {
	defer context.AfterFunc(ctx, func() { w.conn.Close() })()
	for w.in.Scan() {
		var e event
		if err := json.Unmarshal(w.in.Bytes(), &e); err != nil {
			return readError(err)
		}
		learn(e.Learned)
		if err := sendLine(w.conn, ack{e.Seq}); err != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return ErrNotRunning
}

// Close ends the subscription.
func (w *Watcher) Close() error { return w.conn.Close() }
