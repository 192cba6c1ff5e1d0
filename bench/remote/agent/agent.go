package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/bench/cell"
	"cleat/bench/host"
	"cleat/bench/remote"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// Config is what an agent has from its machine.
type Config struct {
	In      io.Reader
	Out     io.Writer
	Host    *netns.NS // the machine's network namespace; nil: the process is in it, without root
	Scratch string    // directory for sockets
}

// ErrSilence: nothing has come from the other end for remote.SilenceLimit.
var ErrSilence = errors.New("the connection is silent")

// agent serves one connection.
type agent struct {
	Config
	ctx context.Context

	write sync.Mutex // one message at a time

	mu        sync.Mutex
	programs  map[uint64]*program
	networks  map[uint64]*wiring.Network
	listeners map[string]net.Listener // by path
	probe     net.Listener            // of OpListen
}

// Serve serves requests until the input ends, which returns nil, or ctx ends, or the other
// end is silent. It then stops all programs and removes all networks.
func Serve(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &agent{Config: cfg, ctx: ctx, programs: map[uint64]*program{}, networks: map[uint64]*wiring.Network{}, listeners: map[string]net.Listener{}}
	defer a.close()
	heard := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() { ended <- a.read(heard) }()
	silence := time.NewTimer(remote.SilenceLimit)
	defer silence.Stop()
	for {
		select {
		case <-heard:
			silence.Reset(remote.SilenceLimit)
		case <-silence.C:
			return ErrSilence
		case err := <-ended:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// read handles messages until the input ends.
func (a *agent) read(heard chan<- struct{}) error {
	for {
		m, err := remote.ReadMessage(a.In)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case heard <- struct{}{}:
		default: // the watch has yet to hear the last one
		}
		switch m.Op {
		case remote.OpPing:
			a.send(remote.Message{Op: remote.OpPong})
		case remote.OpInput, remote.OpKill:
			a.toProgram(m)
		case remote.OpStart, remote.OpConnect, remote.OpAccept:
			p := newProgram(a, m.ID)
			a.mu.Lock()
			a.programs[m.ID] = p
			a.mu.Unlock()
			go p.run(m)
		default:
			go a.answer(m)
		}
	}
}

// send sends a message. An error means that the connection is gone, which read finds out.
func (a *agent) send(m remote.Message) {
	a.write.Lock()
	defer a.write.Unlock()
	remote.WriteMessage(a.Out, m)
}

func (a *agent) reply(id uint64, body any, err error) {
	m := remote.Message{ID: id, Op: remote.OpReply, Error: remote.FailureOf(err)}
	if err == nil && body != nil {
		if m.Body, err = json.Marshal(body); err != nil {
			m.Error = remote.FailureOf(err)
		}
	}
	a.send(m)
}

// answer handles a request that is not about a program.
func (a *agent) answer(m remote.Message) {
	var body any
	var err error
	switch m.Op {
	case remote.OpHello:
		body, err = a.hello()
	case remote.OpHost:
		body, err = a.describe()
	case remote.OpCheck:
		body, err = with(m, check)
	case remote.OpSocket:
		_, err = with(m, func(s remote.Socket) (any, error) { return nil, a.newListener(s.Path) })
	case remote.OpListen:
		body, err = with(m, a.listen)
	case remote.OpClose:
		err = a.closeProbe()
	case remote.OpDial:
		body, err = with(m, a.dial)
	case remote.OpBuild:
		_, err = with(m, func(b remote.Build) (any, error) { return nil, a.build(m.ID, b) })
	case remote.OpRemove:
		_, err = with(m, func(id uint64) (any, error) { return nil, a.remove(id) })
	case remote.OpMeter:
		body, err = with(m, a.meter)
	default:
		err = fmt.Errorf("unknown request %q", m.Op)
	}
	a.reply(m.ID, body, err)
}

// with calls f with the message's body.
func with[In, Out any](m remote.Message, f func(In) (Out, error)) (any, error) {
	var in In
	if err := json.Unmarshal(m.Body, &in); err != nil {
		return nil, fmt.Errorf("read request %q: %w", m.Op, err)
	}
	return f(in)
}

// onHost calls f in the machine's network namespace.
func (a *agent) onHost(f func() error) error {
	if a.Host == nil {
		return f()
	}
	return a.Host.Do(f)
}

// machine returns where programs of the machine itself run.
func (a *agent) machine() lab.Runner {
	if a.Host == nil {
		return lab.Host{}
	}
	return &lab.Node{NS: a.Host}
}

// runner returns where a program is to run.
func (a *agent) runner(w remote.Where) (lab.Runner, error) {
	if w.Network == 0 {
		return a.machine(), nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	nw := a.networks[w.Network]
	if nw == nil {
		return nil, fmt.Errorf("no network has number %d", w.Network)
	}
	c := nw.Container(w.Container)
	if c == nil {
		return nil, fmt.Errorf("network %d has no container %d", w.Network, w.Container)
	}
	return c, nil
}

func (a *agent) hello() (remote.Hello, error) {
	h := remote.Hello{Root: a.Host != nil, Scratch: a.Scratch}
	h.Hostname, _ = os.Hostname() // a report can do without
	allowed, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	h.Congestion = strings.Fields(string(allowed))
	var err error
	if h.Processors, err = host.Processors(); err != nil {
		return h, err
	}
	return h, a.onHost(func() (err error) { h.Addresses, err = addresses(); return err })
}

// addresses returns the addresses of the network namespace of the calling thread that
// others may reach.
func addresses() ([]remote.Route, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []remote.Route
	for _, entry := range list {
		addr, ok := netip.AddrFromSlice(entry.IP)
		addr = addr.Unmap()
		l, err := netlink.LinkByIndex(entry.LinkIndex)
		if ok && addr.IsGlobalUnicast() && err == nil {
			out = append(out, remote.Route{Device: l.Attrs().Name, Local: addr})
		}
	}
	slices.SortStableFunc(out, func(a, b remote.Route) int { return cmp.Compare(a.Local.BitLen(), b.Local.BitLen()) })
	return out, nil
}

// describe returns what `cleat doctor` says of the machine.
func (a *agent) describe() (json.RawMessage, error) {
	var text bytes.Buffer
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer out.Close()
	proc, err := lab.Host{}.Start(lab.Command{Args: []string{lab.Self, "doctor", "--json"}, Stdout: in})
	in.Close()
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(&text, out); err != nil {
		return nil, err
	}
	if err := proc.Wait(); err != nil {
		return nil, fmt.Errorf("describe the machine: %w", err)
	}
	return text.Bytes(), nil
}

// check returns what keeps this machine from building each of the networks.
func check(networks []string) ([]*remote.Failure, error) {
	var out []*remote.Failure
	for _, n := range networks {
		out = append(out, remote.FailureOf(wiring.Check(n)))
	}
	return out, nil
}

// listen listens at a free port of an address, in place of the last one.
func (a *agent) listen(addr netip.Addr) (at netip.AddrPort, err error) {
	if err := a.closeProbe(); err != nil {
		return at, err
	}
	var l net.Listener
	err = a.onHost(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(a.ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return at, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probe = l
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

// closeProbe ends what listen began, if anything.
func (a *agent) closeProbe() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.probe == nil {
		return nil
	}
	err := a.probe.Close()
	a.probe = nil
	return err
}

// dialTimeout bounds one connection of dial: TCP sends the second SYN after a second.
const dialTimeout = 2 * time.Second

// dial connects to an address and returns how the machine reaches it.
func (a *agent) dial(to netip.AddrPort) (r remote.Route, err error) {
	err = a.onHost(func() error { // all on the thread that has entered the namespace
		c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(a.ctx, "tcp", to.String())
		if err != nil {
			return err
		}
		r.Local = c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		c.Close()
		routes, err := netlink.RouteGet(to.Addr().AsSlice())
		if err != nil || len(routes) == 0 {
			return fmt.Errorf("find the route to %s: %w", to.Addr(), err)
		}
		l, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err != nil {
			return fmt.Errorf("find link %d: %w", routes[0].LinkIndex, err)
		}
		r.Device = l.Attrs().Name
		return nil
	})
	return r, err
}

func (a *agent) build(id uint64, b remote.Build) error {
	if a.Host == nil {
		return errors.New("networks need root")
	}
	b.Side.Host = &lab.Node{NS: a.Host}
	nw, err := wiring.BuildSide(a.ctx, wiring.Config{Spec: b.Spec, Pairs: b.Pairs, Scratch: a.Scratch}, b.Side)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.networks[id] = nw
	return nil
}

func (a *agent) remove(id uint64) error {
	a.mu.Lock()
	nw := a.networks[id]
	delete(a.networks, id)
	a.mu.Unlock()
	if nw == nil {
		return fmt.Errorf("no network has number %d", id)
	}
	return nw.Close()
}

// meter reads the machine's processor time in a window.
func (a *agent) meter(w remote.Meter) (cell.CPU, error) {
	begin := time.After(w.Wait)
	m, err := host.NewCPUMeter(lab.HostProc())
	if err != nil {
		return cell.CPU{}, err
	}
	if err := a.sleep(begin); err != nil {
		return cell.CPU{}, err
	}
	if err := m.Begin(); err != nil {
		return cell.CPU{}, err
	}
	if err := a.sleep(time.After(w.For)); err != nil {
		return cell.CPU{}, err
	}
	if err := m.End(); err != nil {
		return cell.CPU{}, err
	}
	return m.Result()
}

func (a *agent) sleep(until <-chan time.Time) error {
	select {
	case <-until:
		return nil
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	}
}

// close stops all programs and removes all networks.
func (a *agent) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.programs {
		p.kill()
	}
	for _, nw := range a.networks {
		nw.Close() // the end of the lab does the rest
	}
	for _, l := range a.listeners {
		l.Close()
	}
	if a.probe != nil {
		a.probe.Close()
	}
}
