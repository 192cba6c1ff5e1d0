package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"cleat/bench/cell"
	"cleat/lab"
)

const (
	// pingEvery is how often an end says that it is there.
	pingEvery = 2 * time.Second
	// SilenceLimit is how long an end waits for anything from the other one before it takes
	// the connection for lost: six pings, since traffic that is measured may fill the way.
	SilenceLimit = 15 * time.Second
)

// Node is another machine on which an agent runs. It is safe for concurrent use.
type Node struct {
	Hello
	Address Address

	session *session
	write   sync.Mutex // one message at a time
	lost    chan struct{}

	mu       sync.Mutex
	last     uint64
	replies  map[uint64]chan Message
	programs map[uint64]*process
	err      error // why the connection ended; set before lost is closed
	closing  bool
}

// Lost: the connection to a machine has ended. Everything there ends, too.
type Lost struct {
	Address Address
	Cause   error
}

func (l *Lost) Error() string {
	return fmt.Sprintf("lost the connection to %s: %v", l.Address, l.Cause)
}
func (l *Lost) Unwrap() error { return l.Cause }

// Dial connects to a machine and runs an agent there. It may ask the user on the terminal.
// Errors are those of ssh (*SSHError), or a *Refused.
func Dial(ctx context.Context, a Address, o Options) (*Node, error) {
	s, err := o.open(ctx, a)
	if err != nil {
		return nil, err
	}
	n := &Node{Address: a, session: s, lost: make(chan struct{}), replies: map[uint64]chan Message{}, programs: map[uint64]*process{}}
	heard := make(chan struct{}, 1)
	go n.read(heard)
	go n.watch(heard)
	if n.Hello, err = ask[Hello](ctx, n, OpHello, nil); err != nil {
		n.Close()
		var gone *Lost
		if errors.As(err, &gone) {
			return nil, s.failure(a, "this program ended there: "+gone.Cause.Error())
		}
		return nil, err
	}
	return n, nil
}

// String returns the machine's address.
func (n *Node) String() string { return n.Address.String() }

// Lost is closed when the connection has ended, for whatever reason.
func (n *Node) Lost() <-chan struct{} { return n.lost }

// Err returns why the connection ended; nil while it has not. The error is a *Lost.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		return nil
	}
	return &Lost{n.Address, n.err}
}

// Close ends the connection, and with it everything on the machine. It waits for that.
// An error means that the machine did not confirm the end in time. Everything there ends
// then after SilenceLimit.
func (n *Node) Close() error {
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	err := n.session.close()
	<-n.lost
	if err != nil {
		return fmt.Errorf("close %s: %w", n, err)
	}
	return nil
}

// read receives messages until the connection ends.
func (n *Node) read(heard chan<- struct{}) {
	for {
		m, err := ReadMessage(n.session.out)
		if err != nil {
			n.session.settle()
			n.fail(err)
			return
		}
		select {
		case heard <- struct{}{}:
		default: // the watch has yet to hear the last one
		}
		n.mu.Lock()
		reply, p := n.replies[m.ID], n.programs[m.ID]
		switch m.Op {
		case OpReply:
			delete(n.replies, m.ID)
		case OpExit:
			delete(n.programs, m.ID)
		}
		n.mu.Unlock()
		switch {
		case m.Op == OpReply && reply != nil:
			reply <- m // it has room for one
		case m.Op == OpOutput && p != nil:
			p.out.put(m.Data)
		case m.Op == OpErrors && p != nil:
			p.errors.put(m.Data)
		case m.Op == OpExit && p != nil:
			p.end(exitError(m.Error))
		}
	}
}

func exitError(f *Failure) error {
	if f == nil {
		return nil
	}
	return f
}

// watch says every pingEvery that this end is there, and cuts a silent connection.
func (n *Node) watch(heard <-chan struct{}) {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	silence := time.NewTimer(SilenceLimit)
	defer silence.Stop()
	for {
		select {
		case <-ping.C:
			go n.send(Message{Op: OpPing}) // a connection that stalls must not stop the watch
		case <-heard:
			silence.Reset(SilenceLimit)
		case <-silence.C:
			n.fail(fmt.Errorf("nothing came for %s", SilenceLimit))
			return
		case <-n.lost:
			return
		}
	}
}

// fail ends the connection because of err, which everything that waits gets.
func (n *Node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return
	}
	switch {
	case n.closing:
		err = errClosed
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("ssh ended")
		if said := lastWords(n.session.stderr.String()); said != "" {
			err = fmt.Errorf("ssh ended: %s", said)
		}
	}
	n.err = err
	n.session.in.Close() // the agent ends, if it still hears
	if !n.closing {
		n.session.kill()
	}
	for _, p := range n.programs {
		p.end(&Lost{n.Address, err})
	}
	close(n.lost)
}

// errClosed: this end has closed the connection.
var errClosed = errors.New("it was closed")

func (n *Node) send(m Message) error {
	n.write.Lock()
	defer n.write.Unlock()
	if err := WriteMessage(n.session.in, m); err != nil {
		return fmt.Errorf("send %q to %s: %w", m.Op, n, err)
	}
	return nil
}

// number returns the number of a new request.
func (n *Node) number() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	return n.last
}

// request sends a request and waits for its reply.
func (n *Node) request(ctx context.Context, id uint64, op Op, body any) (Message, error) {
	m := Message{ID: id, Op: op}
	var err error
	if m.Body, err = json.Marshal(body); err != nil {
		return m, fmt.Errorf("encode request %q: %w", op, err)
	}
	reply := make(chan Message, 1)
	n.mu.Lock()
	n.replies[id] = reply
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.replies, id)
	}()
	if err := n.Err(); err != nil {
		return m, err
	}
	if err := n.send(m); err != nil {
		return m, errors.Join(n.Err(), err)
	}
	select {
	case m = <-reply:
	case <-n.lost:
		select {
		case m = <-reply: // it came before the end
		default:
			return m, n.Err()
		}
	case <-ctx.Done():
		return m, context.Cause(ctx)
	}
	if m.Error != nil {
		return m, fmt.Errorf("%s: %w", n, m.Error)
	}
	return m, nil
}

// ask sends a request and decodes the body of its reply.
func ask[T any](ctx context.Context, n *Node, op Op, body any) (T, error) {
	var out T
	m, err := n.request(ctx, n.number(), op, body)
	if err == nil {
		err = json.Unmarshal(m.Body, &out)
	}
	return out, err
}

// Describe returns the host and findings that `cleat doctor --json` reports there.
func (n *Node) Describe(ctx context.Context) (json.RawMessage, error) {
	return ask[json.RawMessage](ctx, n, OpHost, nil)
}

// Check returns for each network what keeps the machine from building it; nil for nothing.
// The errors are *link.Lack or wrap one.
func (n *Node) Check(ctx context.Context, networks []string) ([]error, error) {
	failures, err := ask[[]*Failure](ctx, n, OpCheck, networks)
	if err == nil && len(failures) != len(networks) {
		err = fmt.Errorf("%s: %d answers for %d networks", n, len(failures), len(networks))
	}
	if err != nil {
		return nil, err
	}
	out := make([]error, len(failures))
	for i, f := range failures {
		if f != nil {
			out[i] = f
		}
	}
	return out, nil
}

// Listen makes the machine listen at a free TCP port of an address until CloseListener.
func (n *Node) Listen(ctx context.Context, addr netip.Addr) (netip.AddrPort, error) {
	return ask[netip.AddrPort](ctx, n, OpListen, addr)
}

// CloseListener frees the port of Listen.
func (n *Node) CloseListener(ctx context.Context) error {
	_, err := n.request(ctx, n.number(), OpClose, nil)
	return err
}

// Reach makes one TCP connection from the machine, and returns its way there.
func (n *Node) Reach(ctx context.Context, to netip.AddrPort) (Route, error) {
	return ask[Route](ctx, n, OpDial, to)
}

// Build builds one side of a network and returns its number.
func (n *Node) Build(ctx context.Context, b Build) (uint64, error) {
	id := n.number()
	_, err := n.request(ctx, id, OpBuild, b)
	return id, err
}

// Remove removes the network of that number.
func (n *Node) Remove(ctx context.Context, network uint64) error {
	_, err := n.request(ctx, n.number(), OpRemove, network)
	return err
}

// Meter returns the machine's processor time in a window that begins a while after it
// hears of it. It blocks until the window is over.
func (n *Node) Meter(ctx context.Context, m Meter) (cell.CPU, error) {
	return ask[cell.CPU](ctx, n, OpMeter, m)
}

// On returns where programs run in the machine's own network, or in a container.
func (n *Node) On(w Where) lab.Runner { return runner{n, w} }
