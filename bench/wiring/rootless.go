package wiring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// rootless is one container whose network is a program's affair.
type rootless struct {
	host      *lab.Node // where the program runs
	container *lab.Node
	netns     string // path of the container's namespace
	pair      int    // tells the programs on one host apart
	mtu       int    // bytes
	inbound   bool   // the program publishes the pair's port, for TCP and UDP
}

// port is that of the pair's server, and the published one.
func (r rootless) port() uint16 { return port(r.pair) }

// helper is a program that gives a namespace its network without root.
type helper struct {
	// loopback is the address by which the container reaches a server that
	// listens at every address of the host: that of the host's loopback where
	// the program has one, else the host's own.
	loopback netip.Addr

	// attach starts the program on a container that is there.
	attach func(s *site, r rootless) error

	// command is the command line by which the program itself runs another
	// one in a fresh namespace; nil: it can't, and a namespace is made first.
	command func(s *site, r rootless, args []string) []string

	// contain makes the container; nil: an empty namespace. A program that
	// makes its own has no attach.
	contain func(s *site, r *rootless) error

	// runner is where commands of the container run; nil: on its node.
	runner func(s *site, r rootless) Runner
}

// userModeMTU is what Podman and RootlessKit give slirp4netns, and pasta's own
// default, in bytes.
const userModeMTU = 65520

// Where the other end of a rootless container's traffic is: levels of the
// factor "peer".
const (
	peerFactor       = "peer"
	peerHostLoopback = "host-loopback"
	peerHostAddress  = "host-address"
)

// onTheHost tells whether the container's peer is the host itself.
func (s *site) onTheHost() bool {
	return s.Factors[peerFactor] == peerHostLoopback || s.Factors[peerFactor] == peerHostAddress
}

// userMode makes a host with an address and a default route, an outside node,
// and for each pair a container that is attached by the helper.
func (s *site) userMode(w *Wired, h helper) error {
	host, outside, err := s.hosts()
	if err != nil {
		return err
	}
	if err := route(host, netip.Prefix{}, hostAddr(2), ""); err != nil {
		return err
	}
	if err := w.setCongestion(host, outside); err != nil {
		return err
	}
	for i := range s.Pairs {
		r, err := s.contained(h, host, i)
		if err != nil {
			return err
		}
		if err := w.setCongestion(r.container); err != nil {
			return err
		}
		device, err := waitConfigured(s.ctx, r.container)
		if err != nil {
			return err
		}
		p := s.rootlessPair(h, r, outside)
		if !s.Inbound {
			p.ClientNode, p.Device = r.container, device
		}
		w.Pairs = append(w.Pairs, p)
	}
	s.launch = func(ctx context.Context, c lab.Command) (*Launched, error) { return s.launched(ctx, h, host, c) }
	return nil
}

// congestionControls are what a program's own sockets get, the first that is
// permitted: cubic, as the generator's, else reno, which always is. What a new
// namespace inherits may be BBR, whose pacing takes two thirds of a loopback's
// rate.
var congestionControls = []string{"cubic", "reno"}

// setCongestion sets the default of nodes on which programs open sockets.
func (w *Wired) setCongestion(nodes ...*lab.Node) error {
	for _, n := range nodes {
		var err error
		for i, c := range congestionControls {
			if err = n.Sysctl("net/ipv4/tcp_congestion_control", c); err == nil {
				if note := "the programs' own TCP sockets use " + c; i > 0 && !slices.Contains(w.Notes, note) {
					w.Notes = append(w.Notes, note)
				}
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// contained makes one container and starts the helper on it.
func (s *site) contained(h helper, host *lab.Node, pair int) (rootless, error) {
	r := rootless{host: host, pair: pair, mtu: cmp.Or(s.MTU, userModeMTU), inbound: s.Inbound}
	contain := h.contain
	if contain == nil {
		contain = emptyContainer
	}
	if err := contain(s, &r); err != nil {
		return r, err
	}
	if h.attach == nil {
		return r, nil
	}
	return r, h.attach(s, r)
}

// emptyContainer is a namespace with a path, which programs can open.
func emptyContainer(s *site, r *rootless) (err error) {
	if r.container, err = s.containerNode("container", r.pair); err != nil {
		return err
	}
	r.netns = fmt.Sprintf("%s/netns%d", s.dir, r.pair)
	if err := r.container.NS.Pin(r.netns); err != nil {
		return err
	}
	s.stops = append(s.stops, func() error { return netns.Unpin(r.netns) })
	return nil
}

// rootlessPair says who talks to whom; the link outbound is not known yet.
func (s *site) rootlessPair(h helper, r rootless, outside *lab.Node) Pair {
	inside := Runner(r.container)
	if h.runner != nil {
		inside = h.runner(s, r)
	}
	p := Pair{Client: inside, Server: outside,
		Listen: netip.AddrPortFrom(everywhere, r.port()), Dial: netip.AddrPortFrom(hostAddr(2), r.port())}
	if s.onTheHost() {
		p.Server, p.Dial = r.host, netip.AddrPortFrom(h.loopback, r.port())
	}
	if !s.Inbound {
		return p
	}
	p.Client, p.Server = p.Server, inside
	p.ClientNode, p.Device, p.Dial = outside, uplink, onHost(r.pair)
	if s.onTheHost() {
		p.ClientNode, p.Device = r.host, "lo"
	}
	if s.Factors[peerFactor] == peerHostLoopback {
		p.Dial = netip.AddrPortFrom(localhost, r.port())
	}
	return p
}

// Launched is a command that was started together with a network of its own.
type Launched struct {
	lab.Proc
	site *site
}

// Close ends the network's programs; the command must have ended, or been
// killed.
func (l *Launched) Close() error {
	if l.site == nil {
		return nil
	}
	return l.site.close()
}

// Launch runs a command in a container that is made for it, in the way of the
// network's program: on the host of the first pair, beside its containers. A
// network without containers runs it on the client's node. Nothing of the work
// is done ahead.
func (w *Wired) Launch(ctx context.Context, c lab.Command) (*Launched, error) {
	if w.site.launch != nil {
		return w.site.launch(ctx, c)
	}
	p, err := w.Pairs[0].Client.Start(c)
	if err != nil {
		return nil, err
	}
	return &Launched{Proc: p}, nil
}

func (s *site) launched(ctx context.Context, h helper, host *lab.Node, c lab.Command) (*Launched, error) {
	dir, err := os.MkdirTemp(s.dir, "launch-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for a container: %w", err)
	}
	own := &site{ctx: ctx, dir: dir, Params: s.Params}
	own.Inbound = false
	l := &Launched{site: own}
	if l.Proc, err = own.startLaunched(h, host, s.Pairs, c); err != nil {
		return nil, errors.Join(own.complaint(err), own.close())
	}
	return l, nil
}

// startLaunched makes the container with the number given and runs c in it.
func (s *site) startLaunched(h helper, host *lab.Node, number int, c lab.Command) (lab.Proc, error) {
	if h.command != nil {
		r := rootless{host: host, pair: number, mtu: cmp.Or(s.MTU, userModeMTU)}
		c.Args = h.command(s, r, c.Args)
		return host.Start(c)
	}
	r, err := s.contained(h, host, number)
	if err != nil {
		return nil, err
	}
	if _, err := waitConfigured(s.ctx, r.container); err != nil {
		return nil, err
	}
	if h.runner != nil {
		return h.runner(s, r).Start(c)
	}
	return r.container.Start(c)
}

// Programs are the process ids of the network's helper programs; their children
// are not listed.
func (w *Wired) Programs() []int {
	var pids []int
	for _, p := range w.site.procs {
		pids = append(pids, p.PID())
	}
	return pids
}

// waitConfigured waits until a program has given the container a link with an
// address, and returns the link's name.
func waitConfigured(ctx context.Context, c *lab.Node) (device string, err error) {
	h, err := link.Handle(c.NS)
	if err != nil {
		return "", err
	}
	defer h.Close()
	return device, poll(ctx, func() error {
		links, err := h.LinkList()
		if err != nil {
			return fmt.Errorf("list the links of %s: %w", c, err)
		}
		for _, l := range links {
			if l.Attrs().Name == "lo" {
				continue
			}
			addrs, err := h.AddrList(l, netlink.FAMILY_V4)
			if err != nil {
				return fmt.Errorf("list the addresses of %s: %w", c, err)
			}
			if len(addrs) > 0 {
				device = l.Attrs().Name
				return nil
			}
		}
		return fmt.Errorf("%s got no link with an address", c)
	})
}

const (
	pollEvery = time.Millisecond // what a start is timed by must not be coarser
	pollFor   = 10 * time.Second // a program that takes longer to start is broken
)

// poll calls ready until it succeeds, and gives up with its last error.
func poll(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, pollFor)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up after %s: %w", pollFor, err)
		case <-tick.C:
		}
	}
}

// saidLine is the first line so far of what the helper programs said that has
// the words in it.
func (s *site) saidLine(words string) (string, bool) {
	said, err := os.ReadFile(s.saidFile())
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(said)) {
		if strings.Contains(line, words) {
			return strings.TrimSpace(line), true
		}
	}
	return "", false
}

// said is nil once a helper program has said the words, as often as there are
// containers so far.
func (s *site) said(words string) error {
	said, err := os.ReadFile(s.saidFile())
	if err != nil {
		return err
	}
	if strings.Count(string(said), words) < len(s.containerNodes) {
		return fmt.Errorf("it does not say %q", words)
	}
	return nil
}
