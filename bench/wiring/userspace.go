package wiring

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// relayed joins each two containers by TUN or TAP devices and the relay of
// package traffic, a process of its own a pair.
func relayed(mode link.TunMode) func(*site, *Wired) error {
	return func(s *site, w *Wired) error {
		return s.pairs(w, func(client, server *lab.Node) error { return s.relay(mode, client, server) })
	}
}

func (s *site) relay(mode link.TunMode, client, server *lab.Node) error {
	var files []*os.File
	for _, n := range []*lab.Node{client, server} {
		// Its link lives as long as a descriptor does: the relay gets a copy.
		t, err := link.OpenTun(n.NS, link.TunSpec{Attrs: link.Attrs{Name: inside, MTU: s.MTU}, Mode: mode, VNetHdr: true})
		if err != nil {
			return err
		}
		for _, f := range t.Files() {
			defer f.Close()
		}
		if err := offloadTun(t); err != nil {
			return err
		}
		files = append(files, t.Files()...)
	}
	return s.start(client, lab.Command{Args: []string{lab.Self, "traffic", "relay"}, Extra: files})
}

// offloadTun lets packets longer than the MTU through: TCP's, and UDP's too
// where the kernel can (Linux 6.2).
func offloadTun(t *link.Tun) error {
	const tcp = link.TunChecksum | link.TunTSO4 | link.TunTSO6
	err := t.SetOffload(tcp | link.TunUSO4 | link.TunUSO6)
	if errors.Is(err, unix.EINVAL) {
		err = t.SetOffload(tcp)
	}
	return err
}

// rootless is what a user-mode network needs: a host with an address and a
// default route, an outside node to talk to, and a container without links.
type rootless struct {
	host, outside, container *lab.Node
	netns                    string // path of the container's namespace
	pair                     int
}

// userModeMTU is what Podman and RootlessKit give slirp4netns, and pasta's own
// default, in bytes.
const userModeMTU = 65520

// userMode makes the nodes for each pair and lets run start the program.
func (s *site) userMode(w *Wired, device string, run func(r rootless, mtu int) error) error {
	host, outside, err := s.hosts()
	if err != nil {
		return err
	}
	if err := route(host, netip.Prefix{}, hostAddr(2), ""); err != nil {
		return err
	}
	for i := range s.Pairs {
		c, err := s.containerNode("container", i)
		if err != nil {
			return err
		}
		path := fmt.Sprintf("%s/netns%d", s.dir, i)
		if err := c.NS.Pin(path); err != nil {
			return err
		}
		s.stops = append(s.stops, func() error { return netns.Unpin(path) })
		if err := run(rootless{host, outside, c, path, i}, cmp.Or(s.MTU, userModeMTU)); err != nil {
			return err
		}
		if err := waitConfigured(s.ctx, c, device); err != nil {
			return err
		}
		p := Pair{Client: c, Server: outside, ClientNode: c, Device: device,
			Listen: netip.AddrPortFrom(everywhere, port(i)), Dial: netip.AddrPortFrom(hostAddr(2), port(i))}
		if s.Inbound {
			p = Pair{Client: outside, Server: c, ClientNode: outside, Device: uplink, Listen: p.Listen, Dial: onHost(i)}
		}
		w.Pairs = append(w.Pairs, p)
	}
	return nil
}

// pasta runs passt's pasta on the namespace. As the lab's only user is 0, it
// must neither change users nor make a user namespace of its own.
func pasta(s *site, w *Wired) error {
	return s.userMode(w, uplink, func(r rootless, mtu int) error {
		p := strconv.Itoa(int(port(r.pair)))
		forward := []string{"-t", "none", "-u", "none"}
		if s.Inbound {
			forward = []string{"-t", p, "-u", p}
		}
		args := append([]string{"pasta", "--foreground", "--quiet", "--config-net", "--netns-only", "--runas", "0:0",
			"--ipv4-only", "--no-map-gw", "--mtu", strconv.Itoa(mtu), "-T", "none", "-U", "none"}, forward...)
		return s.start(r.host, lab.Command{Args: append(args, "--netns", r.netns)})
	})
}

// slirp4netns runs slirp4netns on the namespace, with the forwards added over
// its API socket.
func slirp4netns(s *site, w *Wired) error {
	const device = "tap0"
	return s.userMode(w, device, func(r rootless, mtu int) error {
		socket := fmt.Sprintf("%s/slirp%d", s.dir, r.pair)
		if err := s.start(r.host, lab.Command{Args: []string{"slirp4netns", "--configure", "--mtu=" + strconv.Itoa(mtu),
			"--disable-dns", "--api-socket=" + socket, "--netns-type=path", r.netns, device}}); err != nil {
			return err
		}
		if !s.Inbound {
			return nil
		}
		for _, proto := range []string{"tcp", "udp"} {
			if err := addForward(s.ctx, socket, proto, port(r.pair)); err != nil {
				return err
			}
		}
		return nil
	})
}

// addForward asks slirp4netns for a port forward (its API's add_hostfwd).
func addForward(ctx context.Context, socket, proto string, port uint16) error {
	var conn net.Conn
	if err := poll(ctx, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", socket)
		return err
	}); err != nil {
		return fmt.Errorf("reach slirp4netns: %w", err)
	}
	defer conn.Close()
	request := map[string]any{"execute": "add_hostfwd", "arguments": map[string]any{
		"proto": proto, "host_addr": "0.0.0.0", "host_port": port, "guest_port": port}}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return fmt.Errorf("ask slirp4netns for port %d/%s: %w", port, proto, err)
	}
	conn.(*net.UnixConn).CloseWrite()
	var reply struct {
		Error *struct{ Desc string }
	}
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return fmt.Errorf("read slirp4netns' answer: %w", err)
	}
	if reply.Error != nil {
		return fmt.Errorf("slirp4netns refuses port %d/%s: %s", port, proto, reply.Error.Desc)
	}
	return nil
}

// waitConfigured waits until a program has given the container a link with an
// address.
func waitConfigured(ctx context.Context, c *lab.Node, device string) error {
	h, err := link.Handle(c.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	return poll(ctx, func() error {
		l, err := h.LinkByName(device)
		if err != nil {
			return fmt.Errorf("link %q on %s: %w", device, c, err)
		}
		addrs, err := h.AddrList(l, netlink.FAMILY_V4)
		if err == nil && len(addrs) == 0 {
			err = fmt.Errorf("link %q on %s got no address", device, c)
		}
		return err
	})
}

const (
	pollEvery = 5 * time.Millisecond
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
