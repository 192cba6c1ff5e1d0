package usernettest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Cleat is our own data path in one of its tiers, run by command line. program is the
// path of the binary, and flags are further flags of `cleat run`.
func Cleat(program, tier string, flags ...string) Path {
	return Path{
		Name: strings.Join(append([]string{"cleat", tier}, flags...), " "), Version: "this",
		Lacks: map[Ability]string{DNS6: "the resolver has an IPv4 address, unless IPv4 is off"},
		Start: func(ctx context.Context, s *Topology, o Options) (*Instance, error) {
			return startCleat(ctx, append([]string{program, "run", "--tier", tier}, flags...), s, o)
		},
	}
}

// SeccompTier is cleat in its seccomp tier. The threads of the cases are the supervised
// processes: restrict installs the filter on the calling thread and returns its
// notification descriptor. replaced returns how many of their sockets cleat has replaced
// with its own, according to the helpers that have ended.
func SeccompTier(program string, restrict func() (int, error)) (p Path, replaced func() int) {
	all := 0
	p = Cleat(program, "seccomp")
	p.Lacks[Owner] = "the program inside owns the socket, and keeps it"
	p.Lacks[FastOpen] = "refused: it connects without connect(2)"
	p.Start = func(ctx context.Context, s *Topology, o Options) (*Instance, error) {
		socket := filepath.Join(s.Dir, "seccomp.sock")
		if err := os.WriteFile(filepath.Join(s.Dir, "config.json"), []byte("{}"), 0o600); err != nil { // no capabilities
			return nil, err
		}
		i, err := startCleat(ctx, []string{program, "run", "--stats", "--tier", "seccomp", "--listener", socket}, s, o)
		if err != nil {
			return nil, err
		}
		s.Container.NS.OnEnter(func() error { return s.supervise(socket, restrict) })
		stopped := i.Stopped
		i.Stopped = func() {
			s.Container.NS.OnEnter(nil)
			all += replacedSockets(i.logTail())
			stopped()
		}
		return i, nil
	}
	return p, func() int { return all }
}

// replacedSockets returns the number of replaced sockets from a helper's statistics.
func replacedSockets(output string) int {
	_, rest, found := strings.Cut(output, "by host sockets: ")
	var connections, listeners, clients int
	if found {
		fmt.Sscanf(rest, "%d connections, %d listeners, %d clients", &connections, &listeners, &clients)
	}
	return connections + listeners + clients
}

// supervise registers this thread with a helper, from the host, as OCI runtimes register
// containers.
func (s *Topology) supervise(socket string, restrict func() (int, error)) error {
	var c *net.UnixConn
	err := s.Host.NS.Do(func() (err error) {
		c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	fd, err := restrict()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	state := fmt.Sprintf(`{"ociVersion":"1.0.2","fds":["seccompFd"],"pid":%[1]d,"state":{"pid":%[1]d,"bundle":%[2]q}}`, unix.Gettid(), s.Dir)
	if _, _, err = c.WriteMsgUnix([]byte(state), unix.UnixRights(fd), nil); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1)) // until the helper has taken it
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// Addresses inside: cleat run's own choice, and one of ours.
var (
	cleatNameserver = map[Family]netip.AddrPort{V4: netip.MustParseAddrPort("10.0.2.3:53")}
	cleatLoopback   = map[Family]netip.Addr{V4: netip.MustParseAddr("192.0.2.200"), V6: netip.MustParseAddr("2001:db8:1::200")}
)

func startCleat(ctx context.Context, args []string, s *Topology, o Options) (*Instance, error) {
	args = append(args, "--netns", s.Netns, "--mtu", strconv.Itoa(o.mtu()), "--control", "off", "--verbose")
	families := []Family{V4, V6}
	if o.mtu() < minIPv6MTU {
		families = families[:1]
		args = append(args, "--addr", "ipv6=off")
	}
	for _, fw := range o.Forwards {
		args = append(args, "--publish", fw.publishFlag())
	}
	if o.Auto {
		args = append(args, "--publish", "auto")
	}
	for _, r := range o.Rules {
		flag := "--deny"
		if r.Allow {
			flag = "--allow"
		}
		args = append(args, flag, r.ruleFlag())
	}
	if o.Loopback {
		args = append(args, "--host-loopback", fmt.Sprintf("%s,%s", cleatLoopback[V4], cleatLoopback[V6]))
	}
	i, err := s.Launch(args)
	if err != nil {
		return nil, err
	}
	i.Device, i.Nameserver, i.Loopback = "cleat0", cleatNameserver, cleatLoopback
	if err := s.awaitConfigured(ctx, i, families...); err != nil {
		return nil, err
	}
	if len(o.Forwards) == 0 {
		return i, nil
	}
	return i, s.AwaitPort(ctx, i, o.Forwards[len(o.Forwards)-1])
}

// publishFlag returns the forward as a value of --publish.
func (f Forward) publishFlag() string {
	var b strings.Builder
	switch {
	case f.Addr.Is4():
		fmt.Fprintf(&b, "%s:", f.Addr)
	case f.Addr.Is6():
		fmt.Fprintf(&b, "[%s]:", f.Addr)
	}
	last := f.Count - 1
	fmt.Fprintf(&b, "%d-%d:%d-%d/%s", f.Port, int(f.Port)+last, f.To, int(f.To)+last, f.Proto)
	return b.String()
}

// ruleFlag returns the rule as a value of --allow or --deny.
func (r Rule) ruleFlag() string {
	text := r.Target
	if r.Ports != "" {
		text += ":" + r.Ports
	}
	if r.Proto != "" {
		text += "/" + r.Proto
	}
	return text
}
