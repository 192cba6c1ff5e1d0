package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/internal/sys/systest"
	"cleat/netns"
	"cleat/sandbox"
	"cleat/sandbox/policy"

	"golang.org/x/sys/unix"
)

// bundle is what a container of runc's is like: it has the world's files, and is
// in a network that is served by an unsealed helper, ourselves.
type bundle struct {
	dir, netns string
	caps       []string
	uid        int
	users      bool // in a user namespace of its own
	hostProc   bool // it sees the host's /proc at proc, and a directory of its own at inside
}

// newBundle serves a network namespace and prepares a container for it.
func newBundle(t *testing.T, cfg sandbox.Config) (*bundle, *sandbox.Network) {
	t.Helper()
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("needs runc")
	}
	b := &bundle{dir: t.TempDir()}
	for _, dir := range []string{b.dir, filepath.Dir(b.dir)} {
		if err := os.Chmod(dir, 0o755); err != nil { // for users of the container
			t.Fatal(err)
		}
	}
	b.netns = filepath.Join(b.dir, "netns")
	ns, err := netns.New("container")
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Pin(b.netns); err != nil {
		t.Fatal(err)
	}
	ns.Close()
	t.Cleanup(func() { netns.Unpin(b.netns) })
	socket := filepath.Join(b.dir, "seccomp.sock")
	cfg.Runtimes.Listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Tier = sandbox.TierSeccomp
	n := newNetwork(t, cfg)
	if err := errors.Join(n.Join(patience(t), sandbox.Namespace{Path: b.netns}), n.Prepare(patience(t))); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	profile, err := sandbox.SeccompProfile(nil, socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "profile.json"), profile, 0o600); err != nil {
		t.Fatal(err)
	}
	return b, n
}

// run runs a guest in the container and returns what it printed.
func (b *bundle) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := b.command(t, name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("runc: %v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// command is one that runs a guest in the container.
func (b *bundle) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	profile, err := os.ReadFile(filepath.Join(b.dir, "profile.json"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	program := filepath.Join(b.dir, "guest") // where every user may search
	if err := errors.Join(err, os.WriteFile(program, self, 0o755)); err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	spaces := []object{{"type": "network", "path": b.netns}, {"type": "mount"}, {"type": "pid"}}
	linux := object{"seccomp": json.RawMessage(profile), "namespaces": spaces}
	if b.users {
		linux["namespaces"] = append(spaces, object{"type": "user"})
		linux["uidMappings"] = []object{{"containerID": 0, "hostID": 100000, "size": 65536}}
		linux["gidMappings"] = linux["uidMappings"]
	}
	root := filepath.Join(b.dir, "root")
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "bind", "source": "/dev", "options": []string{"rbind"}}, // keeps runc from making one
	}
	if b.hostProc {
		mounts = append(mounts, object{"destination": filepath.Join(b.dir, "inside"), "type": "tmpfs", "source": "tmpfs"},
			object{"destination": filepath.Join(b.dir, "proc"), "type": "bind", "source": "/proc", "options": []string{"rbind", "ro"}})
	}
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"args": append([]string{program, "guest", name}, args...), "env": []string{"PATH=" + os.Getenv("PATH")}, "cwd": b.dir,
			"user":         object{"uid": b.uid, "gid": b.uid},
			"capabilities": object{"bounding": b.caps, "effective": b.caps, "permitted": b.caps},
		},
		"root":   object{"path": root},
		"mounts": mounts,
		"linux":  linux,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	// The root directory can't itself become the root: runc gets it by another name.
	const script = `set -e; mkdir -p "$2/root"; chmod 755 "$2/root"; mount --rbind / "$2/root"; exec runc --root "$2/state" run --bundle "$2" "$1"`
	id := strings.NewReplacer("/", "-", ":", ".").Replace(t.Name())
	return exec.CommandContext(patience(t), "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", id, b.dir)
}

func TestContainerOfARuntime(t *testing.T) {
	if !asRoot(t) {
		return
	}
	world(t)
	for _, users := range []bool{false, true} {
		t.Run(fmt.Sprint("user namespace ", users), func(t *testing.T) {
			server := answerTCP(t, outside4, "hello", false)
			closed := closedPort(t, outside4)
			b, n := newBundle(t, sandbox.Config{})
			b.users = users
			got := b.run(t, "dial", "tcp", server.String(), closed.String(), server.String())
			if want := "hello\nECONNREFUSED\nhello"; got != want {
				t.Errorf("the container printed %q, want %q", got, want)
			}
			if s := n.Stats(); s.Supervised.Connected != 2 || len(s.Supervised.Kept) != 0 || s.TCPFlows != 0 {
				t.Errorf("counters %+v", s)
			}
		})
	}
}

// Who could change the host's interfaces by a socket of the host's gets none.
func TestContainerThatMayConfigureTheHost(t *testing.T) {
	if !asRoot(t) {
		return
	}
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	b, n := newBundle(t, sandbox.Config{})
	b.caps = []string{"CAP_NET_ADMIN"}
	if got := b.run(t, "dial", "tcp", server.String()); got != "hello" {
		t.Errorf("the container printed %q", got)
	}
	if s := n.Stats(); s.Supervised.Connected != 0 || len(s.Supervised.Kept) != 1 || s.TCPFlows != 1 {
		t.Errorf("counters %+v", s)
	}
	b.users = true // there, that is a capability over its own network only
	if got := b.run(t, "dial", "tcp", server.String()); got != "hello" || n.Stats().Supervised.Connected != 1 {
		t.Errorf("in a user namespace the container printed %q; counters %+v", got, n.Stats())
	}
}

// What is not TCP's is as it would be without us.
func TestContainersOtherSockets(t *testing.T) {
	if !asRoot(t) {
		return
	}
	world(t)
	tests := []struct {
		name  string
		uid   int
		caps  []string
		users bool
		want  []string
	}{
		{"root without capabilities", 0, nil, false, []string{
			"bind in own: ok, mode -rwxr-x---, owner 0:0, peer is the client, 0:0", "bind in others': EACCES", "bind twice: EADDRINUSE",
			"bind abstract: ok", "bind by itself: ok", "udp 5353: ok", "udp 53: EACCES", "tcp 80: EACCES", "tcp 8080: ok", "netlink: ok", "listen at once: ok"}},
		{"a user", 1234, nil, false, []string{
			"bind in own: ok, mode -rwxr-x---, owner 1234:1234, peer is the client, 1234:1234", "bind in others': EACCES", "bind twice: EADDRINUSE",
			"bind abstract: ok", "bind by itself: ok", "udp 5353: ok", "udp 53: EACCES", "tcp 80: EACCES", "tcp 8080: ok", "netlink: ok", "listen at once: ok"}},
		{"root with capabilities", 0, []string{"CAP_DAC_OVERRIDE", "CAP_NET_BIND_SERVICE"}, false, []string{
			"bind in own: ok, mode -rwxr-x---, owner 0:0, peer is the client, 0:0", "bind in others': ok", "bind twice: EADDRINUSE",
			"bind abstract: ok", "bind by itself: ok", "udp 5353: ok", "udp 53: ok", "tcp 80: ok", "tcp 8080: ok", "netlink: ok", "listen at once: ok"}},
		{"root of a user namespace", 0, []string{"CAP_DAC_OVERRIDE", "CAP_NET_BIND_SERVICE"}, true, []string{
			"bind in own: ok, mode -rwxr-x---, owner 0:0, peer is the client, 0:0", "bind in others': EACCES", "bind twice: EADDRINUSE",
			"bind abstract: ok", "bind by itself: ok", "udp 5353: ok", "udp 53: EACCES", "tcp 80: EACCES", "tcp 8080: ok", "netlink: ok", "listen at once: ok"}},
		{"a user of a user namespace", 7, nil, true, []string{
			"bind in own: ok, mode -rwxr-x---, owner 7:7, peer is the client, 7:7", "bind in others': EACCES", "bind twice: EADDRINUSE",
			"bind abstract: ok", "bind by itself: ok", "udp 5353: ok", "udp 53: EACCES", "tcp 80: EACCES", "tcp 8080: ok", "netlink: ok", "listen at once: ok"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, _ := newBundle(t, sandbox.Config{})
			b.uid, b.caps, b.users = tt.uid, tt.caps, tt.users
			own, others := filepath.Join(b.dir, "own"), filepath.Join(b.dir, "others")
			owner := tt.uid
			if tt.users {
				owner += 100000
			}
			if err := errors.Join(os.Mkdir(own, 0o700), os.Chown(own, owner, owner), os.Mkdir(others, 0o700), os.Chown(others, 4321, 4321)); err != nil {
				t.Fatal(err)
			}
			got := strings.Split(b.run(t, "bind-others", own, filepath.Join(others, "socket")), "\n")
			if !slices.Equal(got, tt.want) {
				t.Errorf("the container printed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// bindOthers binds sockets that are none of TCP's.
func bindOthers(args []string) error {
	made := func(domain, kind, protocol int) int {
		fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			panic(err)
		}
		return fd
	}
	stream := func() int { return made(unix.AF_UNIX, unix.SOCK_STREAM, 0) }
	unix.Umask(0o027)
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	server := stream()
	if err := unix.Bind(server, &unix.SockaddrUnix{Name: "relative"}); err != nil {
		return fmt.Errorf("bind in own: %w", err)
	}
	var st unix.Stat_t
	info, err := os.Stat("relative")
	if err := errors.Join(err, unix.Stat("relative", &st), unix.Listen(server, 1)); err != nil {
		return err
	}
	client := stream()
	if err := unix.Connect(client, &unix.SockaddrUnix{Name: filepath.Join(args[0], "relative")}); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	accepted, _, err := unix.Accept(server)
	if err != nil {
		return err
	}
	peer, err := unix.GetsockoptUcred(accepted, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	who := fmt.Sprint("process ", peer.Pid)
	if int(peer.Pid) == os.Getpid() {
		who = "the client"
	}
	fmt.Printf("bind in own: ok, mode %s, owner %d:%d, peer is %s, %d:%d\n", strings.Replace(info.Mode().String(), "S", "-", 1), st.Uid, st.Gid, who, peer.Uid, peer.Gid)
	say := func(what string, err error) { fmt.Printf("%s: %s\n", what, name(err)) }
	say("bind in others'", unix.Bind(stream(), &unix.SockaddrUnix{Name: args[1]}))
	say("bind twice", unix.Bind(stream(), &unix.SockaddrUnix{Name: "relative"}))
	say("bind abstract", unix.Bind(stream(), &unix.SockaddrUnix{Name: "@cleat-test"}))
	say("bind by itself", unix.Bind(stream(), &unix.SockaddrUnix{}))
	datagram := func(port int) error {
		return unix.Bind(made(unix.AF_INET, unix.SOCK_DGRAM, 0), &unix.SockaddrInet4{Port: port})
	}
	say("udp 5353", datagram(5353))
	say("udp 53", datagram(53))
	for _, port := range []int{80, 8080} {
		say(fmt.Sprint("tcp ", port), unix.Bind(made(unix.AF_INET, unix.SOCK_STREAM, 0), &unix.SockaddrInet4{Port: port}))
	}
	say("netlink", unix.Bind(made(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	l, err := net.Listen("unix", filepath.Join(args[0], "go"))
	if err == nil {
		l.Close()
	}
	say("listen at once", err)
	return nil
}

// A container that sees the host's /proc does not find who binds for it there.
func TestContainerBindsNothingOutside(t *testing.T) {
	world(t)
	b, _ := newBundle(t, sandbox.Config{})
	b.hostProc = true
	for _, way := range []string{"root", "cwd/.."} {
		path := filepath.Join(b.dir, "proc/self") + "/" + way + b.dir + "/inside/socket"
		if got := b.run(t, "bind-at", path, b.dir); got == "ok" {
			t.Errorf("bound at %s", path)
		}
	}
	if left, err := os.ReadDir(filepath.Join(b.dir, "inside")); err != nil || len(left) != 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}

func bindAt(args []string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	way := filepath.Join(args[1], "way") // the path is too long for an address
	if err := os.Symlink(filepath.Dir(args[0]), way); err != nil {
		return err
	}
	defer os.Remove(way)
	fmt.Println(name(unix.Bind(fd, &unix.SockaddrUnix{Name: way + "/socket"})))
	return nil
}

// Nor is there a way round for containers, whose threads no Landlock rules keep
// from TCP.
func TestContainerHasNoWayRound(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", true)
	for _, tt := range []struct{ how, want string }{
		{"io_uring", "ENOSYS"},
		{"fast-open", "sendto ENOTSUP, sendmsg ENOTSUP, sendmmsg ENOTSUP, option ENOPROTOOPT"},
		{"child", "ECONNREFUSED"},
		{"message", "EISCONN"},
		{"pidfd", "EISCONN"},
		{"other-links", "EPERM own: ok"},
		{"changing-address", "done"},
		{"changing-descriptor", "done"},
		{"accepted", "done"},
	} {
		t.Run(tt.how, func(t *testing.T) {
			cfg := sandbox.Config{}
			if tt.how == "accepted" {
				port := closedPort(t, outside4)
				cfg.Forwards = []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}
				ctx, stop := context.WithCancel(patience(t))
				defer stop()
				go keepCalling(ctx, port.String())
			}
			b, _ := newBundle(t, cfg)
			forbidden, arrived := counted(t)
			if got := b.run(t, "escape", tt.how, server.String(), forbidden.String()); got != tt.want {
				t.Errorf("the container printed %q, want %q", got, tt.want)
			}
			if n := arrived.Load(); n != 0 {
				t.Errorf("%d connections arrived where none may", n)
			}
		})
	}
}

// The server of a published port accepts the host's own sockets.
func TestContainerAcceptsOnTheHost(t *testing.T) {
	if !asRoot(t) {
		return
	}
	world(t)
	for _, outside := range []string{outside4, outside6} {
		t.Run(outside, func(t *testing.T) {
			port := closedPort(t, outside)
			b, n := newBundle(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}})
			if got := b.served(t, port.String()); got != "tcp from "+outside {
				t.Errorf("the client heard %q", got)
			}
			if s := n.Stats(); s.Supervised.Accepted != 1 || s.Spliced != 0 {
				t.Errorf("counters %+v", s)
			}
		})
	}
}

// keepCalling connects whenever it is not connected, and returns how many clients
// heard nothing between others that heard something.
func keepCalling(ctx context.Context, addr string) (lost int) {
	heard, silent := false, 0
	for ctx.Err() == nil {
		if c, err := net.Dial("tcp", addr); err == nil {
			if n, _ := io.Copy(io.Discard, c); n == 0 {
				silent++
			} else {
				if heard {
					lost += silent
				}
				heard, silent = true, 0
			}
			c.Close()
		}
		time.Sleep(time.Millisecond)
	}
	return lost
}

// What may not be is spliced: for who may configure the host, where the policy says so
// meanwhile, and for clients that the server would take for its own.
func TestContainerAcceptsItsOwn(t *testing.T) {
	world(t)
	for name, tt := range map[string]struct {
		caps   []string
		policy policy.HostSockets
		client string
		hears  string
	}{
		"one that may configure the host": {caps: []string{"CAP_NET_ADMIN"}, client: outside4, hears: outside4},
		"the policy says none":            {policy: policy.HostSocketsNone, client: outside4, hears: outside4},
		"a client of the loopback":        {client: "127.0.0.1", hears: "10.0.2.2"},
	} {
		t.Run(name, func(t *testing.T) {
			port := closedPort(t, tt.client)
			p := says(t, "")
			b, n := newBundle(t, sandbox.Config{Policy: p, Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}})
			b.caps = tt.caps
			if err := p.Set(policy.Rules{HostSockets: tt.policy}); err != nil {
				t.Fatal(err)
			}
			if got := b.served(t, port.String()); got != "tcp from "+tt.hears {
				t.Errorf("the client heard %q", got)
			}
			if s := n.Stats(); s.Supervised.Accepted != 0 || s.Spliced != 1 {
				t.Errorf("counters %+v", s)
			}
		})
	}
}

// served is what a client hears from a server in the container.
func (b *bundle) served(t *testing.T, at string) string {
	t.Helper()
	cmd := b.command(t, "serve", "tcp/:8000")
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the container printed %q, %v", line, err)
	}
	heard := hear(t, at)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	return heard
}

// However a server accepts, it is as if nobody stood between.
func TestContainerAcceptsInAllWays(t *testing.T) {
	world(t)
	port, quiet := closedPort(t, outside4), closedPort(t, outside4)
	forward := func(at netip.AddrPort, to uint16) sandbox.Forward {
		return sandbox.Forward{Protocol: sandbox.TCP, Listen: at, To: netip.AddrPortFrom(netip.Addr{}, to)}
	}
	b, n := newBundle(t, sandbox.Config{Forwards: []sandbox.Forward{forward(port, 8000), forward(quiet, 8001)}})
	ctx, stop := context.WithCancel(patience(t))
	var clients sync.WaitGroup
	var lost atomic.Int64
	for range 3 {
		clients.Go(func() { lost.Add(int64(keepCalling(ctx, port.String()))) })
	}
	got := b.run(t, "accept")
	stop()
	clients.Wait()
	want := `waits for a client: true of 192.0.2.1 in 16 bytes, options as the listener's, flags false false
does not wait: true, flags true true
asks for no address: nothing written true
has room for 4 bytes: 16, true
has room for -1: EINVAL
nobody comes, at once: EAGAIN
nobody comes within its time: EAGAIN
nobody comes, and it is shut: EINVAL
two threads: true
interrupted: every client is served
its own client: from 127.0.0.1
has as many descriptors as it may: EMFILE, then ok
a flag that there is not: EINVAL
killed while it waited: its port is free`
	if got != want {
		t.Errorf("the container printed\n%s\nwant\n%s", got, want)
	}
	if s := n.Stats(); s.Supervised.Accepted < 100 || lost.Load() != 0 {
		t.Errorf("%d clients lost; counters %+v", lost.Load(), s)
	}
}

// acceptClients is a guest that accepts in all ways that there are, and prints how
// each goes.
func acceptClients([]string) error {
	listener := func(port, flags int) int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
		if err == nil {
			err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
				unix.Bind(fd, &unix.SockaddrInet4{Port: port}), unix.Listen(fd, 100))
		}
		if err != nil {
			panic(err)
		}
		return fd
	}
	option := func(fd, level, name int) int {
		n, err := unix.GetsockoptInt(fd, level, name)
		if err != nil {
			panic(err)
		}
		return n
	}
	flags := func(fd int) string {
		state, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		closes, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return fmt.Sprint(state&unix.O_NONBLOCK != 0, closes&unix.FD_CLOEXEC != 0)
	}
	untouched := func(b []byte) bool { return bytes.Count(b, []byte{systest.Untouched}) == len(b) }
	long, short, negative := int32(64), int32(4), int32(-1)

	l := listener(8000, 0)
	c, size, address, errno := systest.Accept(l, &long, 0)
	if errno != 0 {
		return errno
	}
	peer, err := unix.Getpeername(c)
	if err != nil {
		return err
	}
	says := sys.MakeAddress(netip.AddrPortFrom(netip.AddrFrom4(peer.(*unix.SockaddrInet4).Addr), uint16(peer.(*unix.SockaddrInet4).Port)), false)
	inherits := "as the listener's"
	if option(c, unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 1 || option(c, unix.IPPROTO_TCP, unix.TCP_NODELAY) != 0 {
		inherits = "other"
	}
	fmt.Printf("waits for a client: %v of %v in %d bytes, options %s, flags %s\n", bytes.HasPrefix(address, says.Raw()) && untouched(address[len(says.Raw()):]), netip.AddrFrom4(peer.(*unix.SockaddrInet4).Addr), size, inherits, flags(c))
	bye(c)
	unix.SetNonblock(l, true)
	for errno = unix.EAGAIN; errno == unix.EAGAIN; {
		unix.Poll([]unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}, -1)
		c, _, _, errno = systest.Accept(l, &long, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	}
	fmt.Printf("does not wait: %v, flags %s\n", errno == 0, flags(c))
	bye(c)
	unix.SetNonblock(l, false)
	c, _, address, _ = systest.Accept(l, nil, 0)
	fmt.Printf("asks for no address: nothing written %v\n", untouched(address))
	bye(c)
	c, size, address, _ = systest.Accept(l, &short, 0)
	fmt.Printf("has room for 4 bytes: %d, %v\n", size, !untouched(address[:2]) && untouched(address[4:]))
	bye(c)
	_, _, _, errno = systest.Accept(l, &negative, 0)
	fmt.Printf("has room for -1: %s\n", name(errno))

	quiet := listener(8001, unix.SOCK_NONBLOCK)
	_, _, _, errno = systest.Accept(quiet, &long, 0)
	fmt.Printf("nobody comes, at once: %s\n", name(errno))
	unix.SetNonblock(quiet, false)
	unix.SetsockoptTimeval(quiet, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000})
	_, _, _, errno = systest.Accept(quiet, &long, 0)
	fmt.Printf("nobody comes within its time: %s\n", name(errno))
	unix.SetsockoptTimeval(quiet, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{})
	time.AfterFunc(50*time.Millisecond, func() { unix.Shutdown(quiet, unix.SHUT_RD) })
	_, _, _, errno = systest.Accept(quiet, &long, 0)
	fmt.Printf("nobody comes, and it is shut: %s\n", name(errno))
	unix.Close(quiet)

	results := make(chan unix.Errno)
	for range 2 {
		go func() {
			for i := range 20 {
				c, _, _, errno := systest.Accept(l, &long, 0)
				bye(c)
				if errno != 0 || i == 19 {
					results <- errno
					return
				}
			}
		}()
	}
	first, second := <-results, <-results
	fmt.Printf("two threads: %v\n", first == 0 && second == 0)
	fmt.Printf("interrupted: %s\n", acceptInterrupted(l))

	own := listener(8002, 0)
	go func() {
		if c, err := net.Dial("tcp", "127.0.0.1:8002"); err == nil {
			io.Copy(io.Discard, c)
		}
	}()
	c, from, err := unix.Accept(own)
	if err != nil {
		return err
	}
	fmt.Printf("its own client: from %v\n", netip.AddrFrom4(from.(*unix.SockaddrInet4).Addr))
	bye(c)

	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	next, err := unix.Dup(l) // as high as descriptors go
	if err != nil {
		return err
	}
	unix.Close(next)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: was.Max}); err != nil {
		return err
	}
	_, _, _, errno = systest.Accept(l, &long, 0)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	c, _, _, then := systest.Accept(l, &long, 0)
	fmt.Printf("has as many descriptors as it may: %s, then %s\n", name(errno), name(then))
	bye(c)
	_, _, _, errno = systest.Accept(l, &long, 1)
	fmt.Printf("a flag that there is not: %s\n", name(errno))
	unix.Close(l)

	for range 10 {
		cmd := exec.Command("/proc/self/exe", "guest", "accept-one", "8001")
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond) // it calls accept, as a rule
		cmd.Process.Kill()
		cmd.Wait()
		unix.Close(listener(8001, 0)) // panics
	}
	fmt.Println("killed while it waited: its port is free")
	return nil
}

// acceptInterrupted serves clients while signals interrupt the calls.
func acceptInterrupted(l int) string {
	long, result := int32(64), "every client is served"
	interrupted(func() {
		for served := 0; served < 100; {
			c, _, _, errno := systest.Accept(l, &long, 0)
			switch errno {
			case 0:
				served++
				bye(c)
			case unix.EINTR:
			default:
				result = errno.Error()
				return
			}
		}
	}, 50*time.Microsecond)
	return result
}

// interrupted calls f while signals interrupt its system calls.
func interrupted(f func(), every time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if errno := systest.InterruptCalls(unix.SIGUSR1); errno != 0 {
		panic(errno)
	}
	me, done := unix.Gettid(), make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				unix.Tgkill(unix.Getpid(), me, unix.SIGUSR1)
				time.Sleep(every)
			}
		}
	})
	f()
	close(done)
	signals.Wait()
}

// A container that clears the listener's flag at the moment of accepting stops nobody
// but itself.
func TestContainerStopsNobody(t *testing.T) {
	world(t)
	port := closedPort(t, outside4)
	b, n := newBundle(t, sandbox.Config{Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: netip.AddrPortFrom(netip.Addr{}, 8000)}}})
	ended := make(chan struct{})
	var collects sync.WaitGroup
	collects.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				runtime.GC() // stops all threads but those in system calls that are known as such
				n.Stats()
			}
		}
	})
	got := b.run(t, "accept-unfairly")
	close(ended)
	collects.Wait()
	if got != "done" {
		t.Errorf("the container printed %q", got)
	}
	server := answerTCP(t, outside4, "hello", false)
	if got := b.run(t, "dial", "tcp", server.String()); got != "hello" || n.Stats().Supervised.Connected != 1 {
		t.Errorf("the next container printed %q; counters %+v", got, n.Stats())
	}
}

func acceptUnfairly([]string) error {
	l, err := net.Listen("tcp4", ":8000")
	if err != nil {
		return err
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	fd := int(f.Fd()) // blocking
	for range 2 {
		go func() {
			for {
				unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
			}
		}()
	}
	go interrupted(func() {
		for {
			unix.Accept(fd)
		}
	}, 100*time.Microsecond)
	time.Sleep(2 * time.Second)
	fmt.Println("done")
	return nil
}

// bye says something to a client, and closes.
func bye(client int) {
	unix.Write(client, []byte("served"))
	unix.Close(client)
}

// Binding is as patient with signals.
func TestContainerBindsThroughSignals(t *testing.T) {
	world(t)
	b, _ := newBundle(t, sandbox.Config{})
	if got := b.run(t, "bind-interrupted"); got != "ok" {
		t.Errorf("the container printed %q", got)
	}
}

func bindInterrupted([]string) error {
	for i := range 300 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		interrupted(func() {
			for err = unix.EINTR; errors.Is(err, unix.EINTR); {
				err = unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprint("@cleat-test-", i)})
			}
		}, time.Duration(50+i)*time.Microsecond)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	fmt.Println("ok")
	return nil
}

// acceptOne waits for a client at a port.
func acceptOne(args []string) error {
	l, err := net.Listen("tcp4", ":"+args[0])
	if err != nil {
		return err
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	unix.SetNonblock(int(f.Fd()), false)
	fmt.Println("ready")
	_, _, err = unix.Accept(int(f.Fd()))
	return err
}
