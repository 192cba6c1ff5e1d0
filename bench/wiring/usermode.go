package wiring

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// cleatRun is this program's own way: `cleat run`, on a namespace that is there
// or with a command.
func cleatRun(tier string) func(*Network) error {
	return func(nw *Network) error { return nw.userMode(cleatHelper(tier)) }
}

// cleatHelper has the host's loopback at an address that nothing else here has.
func cleatHelper(tier string) helper {
	mapped := netip.AddrFrom4([4]byte{198, 18, 3, 1})
	options := func(nw *Network, r rootless) []string {
		args := []string{lab.Self, "run", "--tier", tier, "--mtu", strconv.Itoa(r.mtu)}
		if nw.cfg.peerOnHost() {
			args = append(args, "--host-loopback", mapped.String())
		}
		if r.inbound {
			p := strconv.Itoa(int(r.port()))
			args = append(args, "-p", p+":"+p, "-p", p+":"+p+"/udp")
		}
		return args
	}
	return helper{
		loopback: mapped,
		attach: func(nw *Network, r rootless) error {
			return nw.start(r.host, lab.Command{Args: append(options(nw, r), "--netns", r.netns)})
		},
		command: func(nw *Network, r rootless, args []string) []string {
			return append(append(options(nw, r), "--"), args...)
		},
	}
}

// cleatSupervised is the tier that only a command which cleat starts can have: so
// each command has a network of its own, and the container is beside the point.
func cleatSupervised(nw *Network) error {
	h := cleatHelper("seccomp")
	h.attach = func(nw *Network, r rootless) error {
		r.inbound = false // the port is the command's
		return cleatHelper("auto").attach(nw, r)
	}
	h.runner = func(nw *Network, r rootless) lab.Runner { return &cleatRunner{nw, r, h} }
	if err := nw.userMode(h); err != nil {
		return err
	}
	nw.Notes = append(nw.Notes, "its streams use reno: others need rights over the host")
	for i := range nw.Pairs {
		nw.Pairs[i].Congestion = "reno"
	}
	return nil
}

// cleatRunner runs each command by the helper's own command line.
type cleatRunner struct {
	nw *Network
	r  rootless
	h  helper
}

// Start implements Runner.
func (c *cleatRunner) Start(cmd lab.Command) (lab.Proc, error) {
	cmd.Args = c.h.command(c.nw, c.r, cmd.Args)
	p, err := c.r.host.Start(cmd)
	if err != nil {
		return nil, err
	}
	return cleatProc{p}, nil
}

// cleatProc is a command that `cleat run` runs: killing that would leave it
// behind.
type cleatProc struct{ lab.Proc }

// Kill ends the command, which ends the other.
func (p cleatProc) Kill() {
	if unix.Kill(p.PID(), unix.SIGTERM) != nil {
		p.Proc.Kill()
	}
}

// pasta runs passt's pasta. As the lab's only user is 0, it must neither change
// users nor, on a namespace that is there, make a user namespace of its own.
// The host's loopback is behind the gateway's address, its default.
func pasta(nw *Network) error {
	options := func(nw *Network, r rootless) []string {
		p := strconv.Itoa(int(r.port()))
		args := []string{"pasta", "--foreground", "--quiet", "--config-net", "--runas", "0:0", "--ipv4-only",
			"--mtu", strconv.Itoa(r.mtu), "-T", "none", "-U", "none"}
		if !nw.cfg.peerOnHost() {
			args = append(args, "--no-map-gw")
		}
		if r.inbound {
			return append(args, "-t", p, "-u", p)
		}
		return append(args, "-t", "none", "-u", "none")
	}
	return nw.userMode(helper{
		loopback: hostAddr(2),
		attach: func(nw *Network, r rootless) error {
			return nw.start(r.host, lab.Command{Args: append(options(nw, r), "--netns-only", "--netns", r.netns)})
		},
		command: func(nw *Network, r rootless, args []string) []string {
			return append(append(options(nw, r), "--"), args...)
		},
	})
}

// slirp4netns runs slirp4netns on the namespace, with the forwards added over
// its API socket.
func slirp4netns(nw *Network) error {
	return nw.userMode(helper{loopback: netip.AddrFrom4([4]byte{10, 0, 2, 2}), attach: attachSlirp})
}

func attachSlirp(nw *Network, r rootless) error {
	socket := fmt.Sprintf("%s/slirp%d", nw.dir, r.pair)
	ready, tell, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer ready.Close()
	err = nw.start(r.host, lab.Command{Extra: []*os.File{tell}, Args: []string{
		"slirp4netns", "--configure", "--mtu=" + strconv.Itoa(r.mtu), "--disable-dns", "--ready-fd=3",
		"--api-socket=" + socket, "--netns-type=path", r.netns, "tap0"}})
	tell.Close()
	if err != nil {
		return err
	}
	if err := awaitByte(ready); err != nil {
		return fmt.Errorf("wait for slirp4netns: %w", err)
	}
	if !r.inbound {
		return nil
	}
	for _, proto := range []string{"tcp", "udp"} {
		if err := addForward(nw.ctx, socket, proto, r.port()); err != nil {
			return err
		}
	}
	return nil
}

// awaitByte waits until a program says that it is ready; one that ends first is
// an error.
func awaitByte(f *os.File) error {
	if err := f.SetReadDeadline(time.Now().Add(pollFor)); err != nil {
		return err
	}
	_, err := f.Read(make([]byte, 1))
	return err
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
