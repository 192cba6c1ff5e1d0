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

	"cleat/lab"
	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// rootlessContainer is a container that a program attaches to the host's sockets.
type rootlessContainer struct {
	node    *lab.Node
	host    *lab.Node // the program runs there
	netns   string    // path of the container's network namespace
	pair    int       // tells the containers of a host apart
	mtu     int       // bytes
	inbound bool      // the program publishes the pair's port, for TCP and UDP
}

// port is that of the pair's server, and the published one.
func (c rootlessContainer) port() uint16 { return port(c.pair) }

// rootlessDriver runs a program that gives a container its network without root.
type rootlessDriver struct {
	// hostAddr is the address at which the container reaches a server that listens at
	// every address of the host. It stands for the host's loopback if the program has
	// such an address, else it is the host's own.
	hostAddr netip.Addr

	// attach starts the program on an existing container; nil where create does.
	attach func(nw *Network, c rootlessContainer) error

	// create makes the container and sets its node; nil: newNamespace.
	create func(nw *Network, c *rootlessContainer) error

	// command returns the command line by which the program itself runs another one in
	// a fresh namespace; nil: it can't, and create and attach come first.
	command func(nw *Network, c rootlessContainer, args []string) []string

	// runner runs commands in the container; nil: its node does.
	runner func(nw *Network, c rootlessContainer) lab.Runner
}

// rootlessMTU is what Podman and RootlessKit give slirp4netns, and pasta's own default,
// in bytes.
const rootlessMTU = 65520

// rootless makes a host with an address and a default route, an outside node, and for
// each pair a container that the driver attaches.
func (nw *Network) rootless(d rootlessDriver) error {
	host, outside, err := nw.hosts()
	if err != nil {
		return err
	}
	if err := addRoute(host, netip.Prefix{}, hostAddr(2), ""); err != nil {
		return err
	}
	if err := nw.setCongestion(host, outside); err != nil {
		return err
	}
	for i := range nw.cfg.Pairs {
		c, err := nw.newRootlessContainer(d, host, i)
		if err != nil {
			return err
		}
		if err := nw.setCongestion(c.node); err != nil {
			return err
		}
		device, err := awaitAddress(nw.ctx, c.node)
		if err != nil {
			return err
		}
		nw.Pairs = append(nw.Pairs, nw.rootlessPair(d, c, device, outside))
	}
	nw.launch = func(ctx context.Context, cmd lab.Command) (lab.Proc, func() error, error) {
		return nw.launchRootless(ctx, d, host, cmd)
	}
	return nil
}

// setCongestion sets the default congestion control of nodes on which programs open
// sockets: cubic, like the load generator's, or reno where cubic is not permitted.
// What a new namespace inherits may be BBR, whose pacing takes two thirds of a
// loopback's rate.
func (nw *Network) setCongestion(nodes ...*lab.Node) error {
	for _, n := range nodes {
		if n.Sysctl("net/ipv4/tcp_congestion_control", "cubic") == nil {
			continue
		}
		if err := n.Sysctl("net/ipv4/tcp_congestion_control", "reno"); err != nil {
			return err
		}
		if note := "the programs' own TCP sockets use reno"; !slices.Contains(nw.Notes, note) {
			nw.Notes = append(nw.Notes, note)
		}
	}
	return nil
}

// newRootlessContainer makes a container and starts the driver's program on it.
func (nw *Network) newRootlessContainer(d rootlessDriver, host *lab.Node, pair int) (rootlessContainer, error) {
	c := rootlessContainer{host: host, pair: pair, mtu: cmp.Or(nw.cfg.MTU, rootlessMTU), inbound: nw.cfg.Inbound}
	create := d.create
	if create == nil {
		create = newNamespace
	}
	if err := create(nw, &c); err != nil || d.attach == nil {
		return c, err
	}
	return c, d.attach(nw, c)
}

// newNamespace makes a container whose namespace has a path, so that programs can open
// it.
func newNamespace(nw *Network, c *rootlessContainer) (err error) {
	if c.node, err = nw.container("container", c.pair); err != nil {
		return err
	}
	c.netns = fmt.Sprintf("%s/netns%d", nw.dir, c.pair)
	if err := c.node.NS.Pin(c.netns); err != nil {
		return err
	}
	nw.cleanups = append(nw.cleanups, func() error { return netns.Unpin(c.netns) })
	return nil
}

func (nw *Network) rootlessPair(d rootlessDriver, c rootlessContainer, device string, outside *lab.Node) Pair {
	inContainer := lab.Runner(c.node)
	if d.runner != nil {
		inContainer = d.runner(nw, c)
	}
	peer := outside
	if nw.cfg.peerOnHost() {
		peer = c.host
	}
	listen := endpoint(anyAddr, c.pair)
	if !nw.cfg.Inbound {
		dial := endpoint(hostAddr(2), c.pair)
		if nw.cfg.peerOnHost() {
			dial = endpoint(d.hostAddr, c.pair)
		}
		return Pair{Client: inContainer, Server: peer, Listen: listen, Dial: dial, ClientNode: c.node, Device: device}
	}
	p := Pair{Client: peer, Server: inContainer, Listen: listen, Dial: endpoint(hostAddr(1), c.pair), ClientNode: peer, Device: uplink}
	if nw.cfg.peerOnHost() {
		p.Device = "lo"
	}
	if nw.cfg.Peer == PeerHostLoopback {
		p.Dial = endpoint(localhost, c.pair)
	}
	return p
}

// Launch runs a command in a new container on the host of the first pair, in the way of
// the network's program. A network without such containers runs it on the client's
// node. Nothing is prepared ahead of time, so that a start can be timed. Once the command
// has ended or been killed, end must be called: it ends the programs that were started.
func (nw *Network) Launch(ctx context.Context, cmd lab.Command) (p lab.Proc, end func() error, err error) {
	if nw.launch != nil {
		return nw.launch(ctx, cmd)
	}
	p, err = nw.Pairs[0].Client.Start(cmd)
	return p, func() error { return nil }, err
}

func (nw *Network) launchRootless(ctx context.Context, d rootlessDriver, host *lab.Node, cmd lab.Command) (lab.Proc, func() error, error) {
	dir, err := os.MkdirTemp(nw.dir, "launch-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a directory for a container: %w", err)
	}
	own := &Network{ctx: ctx, dir: dir, cfg: nw.cfg}
	own.cfg.Inbound = false
	p, err := own.startInContainer(d, host, nw.cfg.Pairs, cmd)
	if err != nil {
		return nil, nil, errors.Join(own.withOutput(err), own.Close())
	}
	return p, own.Close, nil
}

// startInContainer makes the container of that number and runs cmd in it.
func (nw *Network) startInContainer(d rootlessDriver, host *lab.Node, number int, cmd lab.Command) (lab.Proc, error) {
	if d.command != nil {
		c := rootlessContainer{host: host, pair: number, mtu: cmp.Or(nw.cfg.MTU, rootlessMTU)}
		cmd.Args = d.command(nw, c, cmd.Args)
		return host.Start(cmd)
	}
	c, err := nw.newRootlessContainer(d, host, number)
	if err != nil {
		return nil, err
	}
	if _, err := awaitAddress(nw.ctx, c.node); err != nil {
		return nil, err
	}
	if d.runner != nil {
		return d.runner(nw, c).Start(cmd)
	}
	return c.node.Start(cmd)
}

// awaitAddress waits until a program has given the container a link with an IPv4
// address, and returns the link's name.
func awaitAddress(ctx context.Context, c *lab.Node) (device string, err error) {
	h, err := link.Handle(c.NS)
	if err != nil {
		return "", err
	}
	defer h.Close()
	err = poll(ctx, func() error {
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
	return device, err
}

// awaitOutput waits until the output of the helper programs contains text once for each
// container so far.
func (nw *Network) awaitOutput(text string) error {
	return poll(nw.ctx, func() error {
		output, err := os.ReadFile(nw.outputFile())
		if err == nil && strings.Count(string(output), text) < len(nw.containers) {
			err = fmt.Errorf("its output has no %q", text)
		}
		return err
	})
}

// awaitFile waits until a program has made a file, such as its socket.
func (nw *Network) awaitFile(path string) error {
	return poll(nw.ctx, func() error { _, err := os.Stat(path); return err })
}
