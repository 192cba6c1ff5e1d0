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
	attach func(nw *Network, r rootless) error

	// command is the command line by which the program itself runs another
	// one in a fresh namespace; nil: it can't, and a namespace is made first.
	command func(nw *Network, r rootless, args []string) []string

	// contain makes the container; nil: an empty namespace. A program that
	// makes its own has no attach.
	contain func(nw *Network, r *rootless) error

	// runner is where commands of the container run; nil: on its node.
	runner func(nw *Network, r rootless) lab.Runner
}

// userModeMTU is what Podman and RootlessKit give slirp4netns, and pasta's own
// default, in bytes.
const userModeMTU = 65520

// userMode makes a host with an address and a default route, an outside node,
// and for each pair a container that is attached by the helper.
func (nw *Network) userMode(h helper) error {
	host, outside, err := nw.hosts()
	if err != nil {
		return err
	}
	if err := route(host, netip.Prefix{}, hostAddr(2), ""); err != nil {
		return err
	}
	if err := nw.setCongestion(host, outside); err != nil {
		return err
	}
	for i := range nw.cfg.Pairs {
		r, err := nw.contained(h, host, i)
		if err != nil {
			return err
		}
		if err := nw.setCongestion(r.container); err != nil {
			return err
		}
		device, err := waitConfigured(nw.ctx, r.container)
		if err != nil {
			return err
		}
		p := nw.rootlessPair(h, r, outside)
		if !nw.cfg.Inbound {
			p.ClientNode, p.Device = r.container, device
		}
		nw.Pairs = append(nw.Pairs, p)
	}
	nw.launch = func(ctx context.Context, c lab.Command) (*Launched, error) { return nw.launched(ctx, h, host, c) }
	return nil
}

// congestionControls are what a program's own sockets get, the first that is
// permitted: cubic, as the generator's, else reno, which always is. What a new
// namespace inherits may be BBR, whose pacing takes two thirds of a loopback's
// rate.
var congestionControls = []string{"cubic", "reno"}

// setCongestion sets the default of nodes on which programs open sockets.
func (nw *Network) setCongestion(nodes ...*lab.Node) error {
	for _, n := range nodes {
		var err error
		for i, c := range congestionControls {
			if err = n.Sysctl("net/ipv4/tcp_congestion_control", c); err == nil {
				if note := "the programs' own TCP sockets use " + c; i > 0 && !slices.Contains(nw.Notes, note) {
					nw.Notes = append(nw.Notes, note)
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
func (nw *Network) contained(h helper, host *lab.Node, pair int) (rootless, error) {
	r := rootless{host: host, pair: pair, mtu: cmp.Or(nw.cfg.MTU, userModeMTU), inbound: nw.cfg.Inbound}
	contain := h.contain
	if contain == nil {
		contain = emptyContainer
	}
	if err := contain(nw, &r); err != nil {
		return r, err
	}
	if h.attach == nil {
		return r, nil
	}
	return r, h.attach(nw, r)
}

// emptyContainer is a namespace with a path, which programs can open.
func emptyContainer(nw *Network, r *rootless) (err error) {
	if r.container, err = nw.containerNode("container", r.pair); err != nil {
		return err
	}
	r.netns = fmt.Sprintf("%s/netns%d", nw.dir, r.pair)
	if err := r.container.NS.Pin(r.netns); err != nil {
		return err
	}
	nw.stops = append(nw.stops, func() error { return netns.Unpin(r.netns) })
	return nil
}

// rootlessPair says who talks to whom; the link outbound is not known yet.
func (nw *Network) rootlessPair(h helper, r rootless, outside *lab.Node) Pair {
	inside := lab.Runner(r.container)
	if h.runner != nil {
		inside = h.runner(nw, r)
	}
	p := Pair{Client: inside, Server: outside,
		Listen: netip.AddrPortFrom(everywhere, r.port()), Dial: netip.AddrPortFrom(hostAddr(2), r.port())}
	if nw.cfg.peerOnHost() {
		p.Server, p.Dial = r.host, netip.AddrPortFrom(h.loopback, r.port())
	}
	if !nw.cfg.Inbound {
		return p
	}
	p.Client, p.Server = p.Server, inside
	p.ClientNode, p.Device, p.Dial = outside, uplink, onHost(r.pair)
	if nw.cfg.peerOnHost() {
		p.ClientNode, p.Device = r.host, "lo"
	}
	if nw.cfg.Peer == PeerHostLoopback {
		p.Dial = netip.AddrPortFrom(localhost, r.port())
	}
	return p
}

// Launched is a command that was started together with a network of its own.
type Launched struct {
	lab.Proc
	network *Network
}

// Close ends the network's programs; the command must have ended, or been
// killed.
func (l *Launched) Close() error {
	if l.network == nil {
		return nil
	}
	return l.network.Close()
}

// Launch runs a command in a container that is made for it, in the way of the
// network's program: on the host of the first pair, beside its containers. A
// network without containers runs it on the client's node. Nothing of the work
// is done ahead.
func (nw *Network) Launch(ctx context.Context, c lab.Command) (*Launched, error) {
	if nw.launch != nil {
		return nw.launch(ctx, c)
	}
	p, err := nw.Pairs[0].Client.Start(c)
	if err != nil {
		return nil, err
	}
	return &Launched{Proc: p}, nil
}

func (nw *Network) launched(ctx context.Context, h helper, host *lab.Node, c lab.Command) (*Launched, error) {
	dir, err := os.MkdirTemp(nw.dir, "launch-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for a container: %w", err)
	}
	own := &Network{ctx: ctx, dir: dir, cfg: nw.cfg}
	own.cfg.Inbound = false
	l := &Launched{network: own}
	if l.Proc, err = own.startLaunched(h, host, nw.cfg.Pairs, c); err != nil {
		return nil, errors.Join(own.complaint(err), own.Close())
	}
	return l, nil
}

// startLaunched makes the container with the number given and runs c in it.
func (nw *Network) startLaunched(h helper, host *lab.Node, number int, c lab.Command) (lab.Proc, error) {
	if h.command != nil {
		r := rootless{host: host, pair: number, mtu: cmp.Or(nw.cfg.MTU, userModeMTU)}
		c.Args = h.command(nw, r, c.Args)
		return host.Start(c)
	}
	r, err := nw.contained(h, host, number)
	if err != nil {
		return nil, err
	}
	if _, err := waitConfigured(nw.ctx, r.container); err != nil {
		return nil, err
	}
	if h.runner != nil {
		return h.runner(nw, r).Start(c)
	}
	return r.container.Start(c)
}

// Programs are the process ids of the network's helper programs; their children
// are not listed.
func (nw *Network) Programs() []int {
	var pids []int
	for _, p := range nw.procs {
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
func (nw *Network) saidLine(words string) (string, bool) {
	said, err := os.ReadFile(nw.saidFile())
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
func (nw *Network) said(words string) error {
	said, err := os.ReadFile(nw.saidFile())
	if err != nil {
		return err
	}
	if strings.Count(string(said), words) < len(nw.containerNodes) {
		return fmt.Errorf("it does not say %q", words)
	}
	return nil
}
