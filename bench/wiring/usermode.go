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

// cleatRun runs `cleat run` on an existing namespace, or with a command.
func cleatRun(tier string) func(*Network) error {
	return func(nw *Network) error { return nw.rootless(cleatDriver(tier)) }
}

func cleatDriver(tier string) rootlessDriver {
	hostLoopback := netip.AddrFrom4([4]byte{198, 18, 3, 1}) // used by nothing else here
	options := func(nw *Network, c rootlessContainer) []string {
		args := []string{lab.Self, "run", "--tier", tier, "--mtu", strconv.Itoa(c.mtu)}
		if nw.cfg.peerOnHost() {
			args = append(args, "--host-loopback", hostLoopback.String())
		}
		if c.inbound {
			p := strconv.Itoa(int(c.port()))
			args = append(args, "-p", p+":"+p, "-p", p+":"+p+"/udp")
		}
		return args
	}
	return rootlessDriver{
		hostAddr: hostLoopback,
		attach: func(nw *Network, c rootlessContainer) error {
			return nw.start(c.host, lab.Command{Args: append(options(nw, c), "--netns", c.netns)})
		},
		command: func(nw *Network, c rootlessContainer, args []string) []string {
			return append(append(options(nw, c), "--"), args...)
		},
	}
}

// cleatSeccomp measures the seccomp tier, which only commands that cleat itself starts
// can have. So each command gets a network of its own, and the containers are unused.
func cleatSeccomp(nw *Network) error {
	d := cleatDriver("seccomp")
	d.attach = func(nw *Network, c rootlessContainer) error {
		c.inbound = false // the command publishes the port
		return cleatDriver("auto").attach(nw, c)
	}
	d.runner = func(nw *Network, c rootlessContainer) lab.Runner {
		return seccompRunner{c.host, func(args []string) []string { return d.command(nw, c, args) }}
	}
	if err := nw.rootless(d); err != nil {
		return err
	}
	nw.Notes = append(nw.Notes, "its streams use reno: other congestion controls need privileges over the host")
	for i := range nw.Pairs {
		nw.Pairs[i].Congestion = "reno"
	}
	return nil
}

// seccompRunner runs each command by a `cleat run` of its own.
type seccompRunner struct {
	host    *lab.Node
	command func(args []string) []string
}

// Start implements lab.Runner.
func (r seccompRunner) Start(c lab.Command) (lab.Proc, error) {
	c.Args = r.command(c.Args)
	p, err := r.host.Start(c)
	return cleatRunProc{p}, err
}

// cleatRunProc is a `cleat run`, which would leave its command behind if it were killed.
type cleatRunProc struct{ lab.Proc }

// Kill asks `cleat run` to end its command, after which it ends itself.
func (p cleatRunProc) Kill() {
	if unix.Kill(p.PID(), unix.SIGTERM) != nil {
		p.Proc.Kill()
	}
}

// pasta runs passt's pasta. The lab's only user is 0, so pasta must not switch users,
// nor make a user namespace of its own on an existing namespace. The gateway's address
// stands for the host's loopback, by default.
func pasta(nw *Network) error {
	options := func(nw *Network, c rootlessContainer) []string {
		p := strconv.Itoa(int(c.port()))
		args := []string{"pasta", "--foreground", "--quiet", "--config-net", "--runas", "0:0", "--ipv4-only",
			"--mtu", strconv.Itoa(c.mtu), "-T", "none", "-U", "none"}
		if !nw.cfg.peerOnHost() {
			args = append(args, "--no-map-gw")
		}
		if c.inbound {
			return append(args, "-t", p, "-u", p)
		}
		return append(args, "-t", "none", "-u", "none")
	}
	return nw.rootless(rootlessDriver{
		hostAddr: hostAddr(2),
		attach: func(nw *Network, c rootlessContainer) error {
			return nw.start(c.host, lab.Command{Args: append(options(nw, c), "--netns-only", "--netns", c.netns)})
		},
		command: func(nw *Network, c rootlessContainer, args []string) []string {
			return append(append(options(nw, c), "--"), args...)
		},
	})
}

// slirp4netns runs slirp4netns on the namespace, and adds port forwards over its API
// socket.
func slirp4netns(nw *Network) error {
	return nw.rootless(rootlessDriver{hostAddr: netip.AddrFrom4([4]byte{10, 0, 2, 2}), attach: attachSlirp})
}

func attachSlirp(nw *Network, c rootlessContainer) error {
	socket := fmt.Sprintf("%s/slirp%d", nw.dir, c.pair)
	ready, signal, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer ready.Close()
	err = nw.start(c.host, lab.Command{Extra: []*os.File{signal}, Args: []string{
		"slirp4netns", "--configure", "--mtu=" + strconv.Itoa(c.mtu), "--disable-dns", "--ready-fd=3",
		"--api-socket=" + socket, "--netns-type=path", c.netns, "tap0"}})
	signal.Close()
	if err != nil {
		return err
	}
	// Reading fails if slirp4netns ends instead.
	if err := ready.SetReadDeadline(time.Now().Add(pollFor)); err != nil {
		return err
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for slirp4netns: %w", err)
	}
	return publish(c, func(proto string, port uint16) error { return addForward(nw.ctx, socket, proto, port) })
}

// publish calls forward for TCP and UDP, if the container's port is to be published.
func publish(c rootlessContainer, forward func(proto string, port uint16) error) error {
	if !c.inbound {
		return nil
	}
	if err := forward("tcp", c.port()); err != nil {
		return err
	}
	return forward("udp", c.port())
}

// addForward asks slirp4netns for a port forward (its API's add_hostfwd).
func addForward(ctx context.Context, socket, proto string, port uint16) error {
	var conn net.Conn
	if err := poll(ctx, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", socket)
		return err
	}); err != nil {
		return fmt.Errorf("connect to slirp4netns: %w", err)
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
		return fmt.Errorf("read slirp4netns's reply: %w", err)
	}
	if reply.Error != nil {
		return fmt.Errorf("slirp4netns refuses port %d/%s: %s", port, proto, reply.Error.Desc)
	}
	return nil
}
