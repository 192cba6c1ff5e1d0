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
func cleatRun(tier string) func(*site, *Wired) error {
	return func(s *site, w *Wired) error { return s.userMode(w, cleatHelper(tier)) }
}

// cleatHelper has the host's loopback at an address that nothing else here has.
func cleatHelper(tier string) helper {
	mapped := netip.AddrFrom4([4]byte{198, 18, 3, 1})
	options := func(s *site, r rootless) []string {
		args := []string{lab.Self, "run", "--tier", tier, "--mtu", strconv.Itoa(r.mtu)}
		if s.onTheHost() {
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
		attach: func(s *site, r rootless) error {
			return s.start(r.host, lab.Command{Args: append(options(s, r), "--netns", r.netns)})
		},
		command: func(s *site, r rootless, args []string) []string {
			return append(append(options(s, r), "--"), args...)
		},
	}
}

// cleatSupervised is the tier that only a command which cleat starts can have: so
// each command has a network of its own, and the container is beside the point.
func cleatSupervised(s *site, w *Wired) error {
	h := cleatHelper("seccomp")
	h.attach = func(s *site, r rootless) error {
		r.inbound = false // the port is the command's
		return cleatHelper("auto").attach(s, r)
	}
	h.runner = func(s *site, r rootless) Runner { return &cleatRunner{s, r, h} }
	if err := s.userMode(w, h); err != nil {
		return err
	}
	w.Notes = append(w.Notes, "its streams use reno: others need rights over the host")
	for i := range w.Pairs {
		w.Pairs[i].Congestion = "reno"
	}
	return nil
}

// cleatRunner runs each command by the helper's own command line.
type cleatRunner struct {
	s *site
	r rootless
	h helper
}

// Start implements Runner.
func (c *cleatRunner) Start(cmd lab.Command) (lab.Proc, error) {
	cmd.Args = c.h.command(c.s, c.r, cmd.Args)
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
func pasta(s *site, w *Wired) error {
	options := func(s *site, r rootless) []string {
		p := strconv.Itoa(int(r.port()))
		args := []string{"pasta", "--foreground", "--quiet", "--config-net", "--runas", "0:0", "--ipv4-only",
			"--mtu", strconv.Itoa(r.mtu), "-T", "none", "-U", "none"}
		if !s.onTheHost() {
			args = append(args, "--no-map-gw")
		}
		if r.inbound {
			return append(args, "-t", p, "-u", p)
		}
		return append(args, "-t", "none", "-u", "none")
	}
	return s.userMode(w, helper{
		loopback: hostAddr(2),
		attach: func(s *site, r rootless) error {
			return s.start(r.host, lab.Command{Args: append(options(s, r), "--netns-only", "--netns", r.netns)})
		},
		command: func(s *site, r rootless, args []string) []string {
			return append(append(options(s, r), "--"), args...)
		},
	})
}

// slirp4netns runs slirp4netns on the namespace, with the forwards added over
// its API socket.
func slirp4netns(s *site, w *Wired) error {
	return s.userMode(w, helper{loopback: netip.AddrFrom4([4]byte{10, 0, 2, 2}), attach: attachSlirp})
}

func attachSlirp(s *site, r rootless) error {
	socket := fmt.Sprintf("%s/slirp%d", s.dir, r.pair)
	ready, tell, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer ready.Close()
	err = s.start(r.host, lab.Command{Extra: []*os.File{tell}, Args: []string{
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
		if err := addForward(s.ctx, socket, proto, r.port()); err != nil {
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
