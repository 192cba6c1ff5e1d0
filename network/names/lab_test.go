package names

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/lab"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// forbidden are actions that a sealed server does not need. file is in its state directory.
func forbidden(file string) map[string]func() error {
	open := func(path string, flags int) func() error {
		return func() error {
			f, err := os.OpenFile(path, flags, 0o600)
			if err == nil {
				f.Close()
			}
			return err
		}
	}
	socket := func(family, kind, protocol int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, protocol)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
	}
	return map[string]func() error{
		"execute":         func() error { return unix.Exec("/bin/true", []string{"true"}, nil) },
		"fork":            func() error { _, err := syscall.ForkExec("/bin/true", nil, nil); return err },
		"read a file":     open("/etc/passwd", os.O_RDONLY),
		"read its binary": open("/proc/self/exe", os.O_RDONLY),
		"write a file":    open(file, os.O_WRONLY),
		"create a file":   open(file+".new", os.O_RDWR|os.O_CREATE),
		"remove a file":   func() error { return os.Remove(file) },
		"kill":            func() error { return unix.Kill(os.Getppid(), 0) },
		"trace":           func() error { return unix.PtraceAttach(os.Getppid()) },
		"namespace":       func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"mount":           func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") },
		"change the user": func() error { return unix.Setresuid(0, 0, 0) },
		"raw socket":      socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP),
		"netlink":         socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
		"Unix socket":     socket(unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"listen":          func() error { l, err := net.Listen("tcp", "127.0.0.1:0"); closeIf(l, err); return err },
		"executable memory": func() error {
			b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err == nil {
				unix.Munmap(b)
			}
			return err
		},
	}
}

func closeIf(l net.Listener, err error) {
	if err == nil {
		l.Close()
	}
}

// allowedActions tries all forbidden actions and lists those that were allowed.
func allowedActions(file string) (all []string) {
	for name, do := range forbidden(file) {
		if err := do(); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
			all = append(all, fmt.Sprintf("%s: %v", name, err))
		}
	}
	return all
}

// site is a host with a resolver, a name server, and a container on the network shop:
//
//	container ── 192.0.2.10 ── 192.0.2.1 ── host
//	                                         ├ name server: 192.0.2.1, and 127.0.0.53 in the container
//	                                         └ resolver: 127.0.0.53
type site struct {
	host, container *lab.Node
	client          *Client
	server          lab.Proc
	stdin, stdout   *os.File
	dir, path       string
}

func newSite(t *testing.T) *site {
	t.Helper()
	lab.Need(t)
	s := &site{host: node(t, "host"), container: node(t, "container"), dir: t.TempDir()}
	must(t, lab.Connect(lab.End{Node: s.host, Name: "br"}, lab.End{Node: s.container, Name: "eth0"}, lab.Cable{}))
	must(t, s.host.Address("br", netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8:1::1/64")))
	must(t, s.container.Address("eth0", netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("2001:db8:1::10/64")))
	must(t, s.host.NS.Do(func() error { startUpstream(t, resolver); return nil }))
	s.path = filepath.Join(s.dir, "names.socket")
	must(t, os.WriteFile(filepath.Join(s.dir, "resolv.conf"), []byte("nameserver 127.0.0.53\n"), 0o600))
	s.startServer(t)
	return s
}

func node(t *testing.T, name string) *lab.Node {
	t.Helper()
	n, err := lab.NewNode(name)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

// startServer starts the server program on the host.
func (s *site) startServer(t *testing.T) {
	t.Helper()
	in, stdin, err := os.Pipe()
	must(t, err)
	stdout, out, err := os.Pipe()
	must(t, err)
	t.Setenv(serverEnv, "1")
	s.server, err = s.host.Start(lab.Command{Args: []string{lab.Self, s.path, filepath.Join(s.dir, "resolv.conf")}, Stdin: in, Stdout: out, Stderr: os.Stderr})
	must(t, err)
	must(t, os.Unsetenv(serverEnv))
	in.Close()
	out.Close()
	s.stdin, s.stdout = stdin, stdout
	t.Cleanup(func() {
		stdin.Close()
		stdout.Close()
		s.server.Kill()
		_ = s.server.Wait()
	})
	waitFor(t, "the server", func() bool {
		c, err := Dial(t.Context(), s.path)
		if err == nil {
			_, err = c.State(t.Context())
		}
		if err == nil {
			s.client = c
		}
		return err == nil
	})
	t.Cleanup(func() { s.client.Close() })
}

// serveIn opens sockets on a node and passes them to the server.
func (s *site) serveIn(t *testing.T, n *lab.Node, at string, socket Socket) {
	t.Helper()
	must(t, n.NS.Do(func() error {
		udp, tcp, err := Open(netip.MustParseAddrPort(at))
		if err != nil {
			return err
		}
		defer udp.Close()
		defer tcp.Close()
		return s.client.Serve(t.Context(), socket, udp, tcp)
	}))
}

// output runs a program in the container with a resolv.conf and returns what it prints.
func (s *site) output(t *testing.T, resolvConf string, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(file, []byte(resolvConf), 0o644))
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	must(t, err)
	defer out.Close()
	script := `mount --bind "$0" /etc/resolv.conf && exec "$@"`
	p, err := s.container.Start(lab.Command{Args: append([]string{"unshare", "-m", "sh", "-c", script, file}, args...), Stdout: out, Stderr: out})
	must(t, err)
	_ = p.Wait() // a look-up that finds nothing fails
	text, err := os.ReadFile(out.Name())
	must(t, err)
	return string(text)
}

// Programs in a container find names with glibc's resolver and with Go's: a thousand of the
// network's, and those that the host's resolver knows.
func TestRealResolvers(t *testing.T) {
	s := newSite(t)
	n := Network{Name: "shop", Subnets: shop.Subnets, Endpoints: shop.Endpoints}
	for i := range 1000 {
		n.Endpoints = append(n.Endpoints, Endpoint{Name: fmt.Sprint("c", i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}})
	}
	must(t, s.client.Replace(t.Context(), n))
	s.serveIn(t, s.host, "192.0.2.1:53", Socket{ID: "gw", Networks: []string{"shop"}})
	s.serveIn(t, s.host, "[2001:db8:1::1]:53", Socket{ID: "gw6", Networks: []string{"shop"}})
	s.serveIn(t, s.container, "127.0.0.53:53", Socket{ID: "container", Networks: []string{"shop"}})
	self, err := os.Executable()
	must(t, err)
	t.Setenv(lookupEnv, "1")
	for name, conf := range map[string]string{
		"gateway":           "search shop corp.example\nnameserver 192.0.2.1\n",
		"gateway over IPv6": "search shop corp.example\nnameserver 2001:db8:1::1\n",
		"in the container":  "search shop corp.example\nnameserver 127.0.0.53\n",
		"over TCP":          "search shop corp.example\nnameserver 192.0.2.1\noptions use-vc\n",
		"without search":    "nameserver 192.0.2.1\n",
	} {
		t.Run(name, func(t *testing.T) {
			search := strings.Contains(conf, "search")
			for query, want := range map[string]string{
				"web": "2001:db8:1::10 192.0.2.10", "db.shop": "192.0.2.20", "c999": "10.1.3.231", "www.example": "203.0.113.1", "nosuch.shop.": "",
				"wiki": map[bool]string{true: "203.0.113.1", false: ""}[search], // wiki.corp.example
			} {
				got := map[string]bool{}
				for line := range strings.Lines(s.output(t, conf, "getent", "ahosts", query)) {
					got[strings.Fields(line)[0]] = true
				}
				wanted := map[string]bool{}
				for _, a := range strings.Fields(want) {
					wanted[a] = true
				}
				if d := cmp.Diff(wanted, got); d != "" {
					t.Errorf("glibc, %s: %s", query, d)
				}
			}
			got := s.output(t, conf, self, "web.shop", "c0", "c517", "www.example", "192.0.2.77")
			want := "web.shop 192.0.2.10 2001:db8:1::10\nc0 10.1.0.0\nc517 10.1.2.5\nwww.example 203.0.113.1\n192.0.2.77 192.0.2.77\n"
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("Go: %s", d)
			}
		})
	}
	if got := s.output(t, "nameserver 192.0.2.1\n", "getent", "hosts", "192.0.2.10"); !strings.Contains(got, "web.shop") {
		t.Errorf("reverse: %q", got)
	}
	state, err := s.client.State(t.Context())
	must(t, err)
	for _, k := range state.Sockets {
		if local := k.ID != "container"; k.Local != local || k.Answered == 0 || k.Invalid > 0 {
			t.Errorf("socket %+v", k)
		}
	}
}

// Names that are not ours are found by the next server of the client's resolv.conf, and ours by
// the first one. The next server denies ours.
func TestOnlyOurs(t *testing.T) {
	s := newSite(t)
	must(t, s.client.Replace(t.Context(), shop))
	s.serveIn(t, s.container, "127.0.0.54:53", Socket{ID: "container", Networks: []string{"shop"}, OnlyOurs: true})
	must(t, s.container.NS.Do(func() error { startUpstream(t, "127.0.0.11:53"); return nil }))
	self, err := os.Executable()
	must(t, err)
	t.Setenv(lookupEnv, "1")
	const conf = "nameserver 127.0.0.54\nnameserver 127.0.0.11\n"
	for query, want := range map[string]string{"db": "192.0.2.20", "db.shop": "192.0.2.20", "www.example": "203.0.113.1", "nosuch.shop": ""} {
		got, _, _ := strings.Cut(s.output(t, conf, "getent", "ahostsv4", query), " ")
		if got != want {
			t.Errorf("glibc, %s: got %q, want %q", query, got, want)
		}
	}
	if got, want := s.output(t, conf, self, "db", "www.example"), "db 192.0.2.20\nwww.example 203.0.113.1\n"; got != want {
		t.Errorf("Go: got %q, want %q", got, want)
	}
}

// Sockets of a process are closed when it ends, also by a sealed server. Those of another process
// that have taken the place of the first one's stay.
func TestServeWhile(t *testing.T) {
	s := newSite(t)
	must(t, s.client.Replace(t.Context(), shop))
	start := func() (lab.Proc, *os.File) {
		p, err := s.container.Start(lab.Command{Args: []string{"sleep", "1000"}})
		must(t, err)
		fd, err := unix.PidfdOpen(p.PID(), unix.PIDFD_NONBLOCK)
		must(t, err)
		return p, os.NewFile(uintptr(fd), "pidfd")
	}
	serve := func(at string, process *os.File) {
		must(t, s.container.NS.Do(func() error {
			udp, tcp, err := Open(netip.MustParseAddrPort(at))
			must(t, err)
			defer udp.Close()
			defer tcp.Close()
			return s.client.ServeWhile(t.Context(), Socket{ID: "container", Networks: []string{"shop"}}, udp, tcp, process)
		}))
	}
	sockets := func() int {
		state, err := s.client.State(t.Context())
		must(t, err)
		return len(state.Sockets)
	}
	first, firstFD := start()
	second, secondFD := start()
	defer firstFD.Close()
	defer secondFD.Close()
	serve("127.0.0.54:53", firstFD)
	serve("127.0.0.55:53", secondFD)
	first.Kill()
	_ = first.Wait()
	must(t, s.container.NS.Do(func() error {
		if got := lookUp(t, "127.0.0.55:53", "db", dnsmessage.TypeA); got != "Success, 192.0.2.20" {
			t.Error(got)
		}
		return nil
	}))
	second.Kill()
	_ = second.Wait()
	waitFor(t, "the sockets to be closed", func() bool { return sockets() == 0 })
	ended, endedFD := start() // a process that ends before the server knows it
	defer endedFD.Close()
	ended.Kill()
	_ = ended.Wait()
	serve("127.0.0.56:53", endedFD)
	waitFor(t, "the sockets of an ended process to be closed", func() bool { return sockets() == 0 })
}

// The server answers on after its controllers were killed, and another one takes over.
func TestControllersComeAndGo(t *testing.T) {
	s := newSite(t)
	must(t, s.client.Replace(t.Context(), shop))
	s.serveIn(t, s.host, "192.0.2.1:53", Socket{ID: "gw", Networks: []string{"shop"}})
	in := func(name string) (got string) {
		must(t, s.container.NS.Do(func() error { got = lookUp(t, "192.0.2.1:53", name, dnsmessage.TypeA); return nil }))
		return got
	}
	script := fmt.Sprintf(`printf '{"version":1,"do":"watch"}\n'; sleep 1000 # %s`, s.path)
	p, err := s.host.Start(lab.Command{Args: []string{"sh", "-c", script}})
	must(t, err)
	p.Kill()
	_ = p.Wait()
	s.client.Close()
	if got := in("web"); got != "Success, 192.0.2.10" {
		t.Error(got)
	}
	s.client = dial(t, s.path)
	must(t, s.client.Set(t.Context(), "shop", Change{Set: []Endpoint{{Name: "new", Addrs: addrs("192.0.2.40")}}}))
	if got := in("new"); got != "Success, 192.0.2.40" {
		t.Error(got)
	}

	// A killed server can be replaced at once.
	s.server.Kill()
	_ = s.server.Wait()
	if _, err := s.client.State(t.Context()); err == nil {
		t.Error("a killed server answers")
	}
	s.startServer(t)
	if err := s.client.Set(t.Context(), "shop", Change{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("a new server knows a network: %v", err)
	}
	must(t, s.client.Replace(t.Context(), shop))
	s.serveIn(t, s.host, "192.0.2.1:53", Socket{ID: "gw", Networks: []string{"shop"}})
	if got := in("web"); got != "Success, 192.0.2.10" {
		t.Error(got)
	}
}

// A sealed server does all of its work, and nothing else.
func TestSealed(t *testing.T) {
	s := newSite(t)
	_, err := s.stdin.WriteString("try\n")
	must(t, err)
	must(t, s.stdout.SetReadDeadline(time.Now().Add(time.Minute)))
	line, err := bufio.NewReader(s.stdout).ReadString('\n')
	must(t, err)
	if line != "\n" {
		t.Errorf("allowed: %s", line)
	}
	state, err := s.client.State(t.Context())
	must(t, err)
	want := Sealed{Capabilities: []string{}, NoNewPrivileges: true, Seccomp: true, LandlockABI: state.Sealed.LandlockABI}
	if d := cmp.Diff(want, state.Sealed); d != "" {
		t.Error(d)
	}
	statuses, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", s.server.PID()))
	must(t, err)
	if len(statuses) < 3 {
		t.Fatalf("%d threads", len(statuses))
	}
	for _, path := range statuses {
		text, err := os.ReadFile(path)
		must(t, err)
		for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(string(text), line) {
				t.Errorf("%s lacks %q", path, line)
			}
		}
	}
	open := shop
	open.NoForward = false
	must(t, s.client.Replace(t.Context(), open))
	s.serveIn(t, s.host, "192.0.2.1:53", Socket{ID: "gw", Networks: []string{"shop"}})
	// A resolver with an IPv6 address, in a file that has replaced the first one.
	must(t, s.host.NS.Do(func() error { startUpstream(t, "[::1]:53"); return nil }))
	next := filepath.Join(s.dir, "resolv.conf.next")
	must(t, os.WriteFile(next, []byte("nameserver ::1\noptions use-vc\n"), 0o600))
	must(t, os.Rename(next, filepath.Join(s.dir, "resolv.conf")))
	must(t, s.container.NS.Do(func() error {
		for name, want := range map[string]string{"web": "Success, 192.0.2.10", "www.example": "Success, 203.0.113.1"} {
			if got := lookUp(t, "192.0.2.1:53", name, dnsmessage.TypeA); got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
		return nil
	}))
}

// Only one server runs at a path.
func TestRunTwice(t *testing.T) {
	s := newSite(t)
	t.Setenv(serverEnv, "1")
	p, err := s.host.Start(lab.Command{Args: []string{lab.Self, s.path, filepath.Join(s.dir, "resolv.conf")}})
	must(t, err)
	if p.Wait() == nil {
		t.Error("a second server has started")
	}
	if _, err := s.client.State(t.Context()); err != nil {
		t.Error(err)
	}
}
