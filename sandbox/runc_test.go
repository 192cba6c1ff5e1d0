package sandbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// bundle describes a container of runc. It sees the lab's files, and is in a network that
// this process serves, unsealed.
type bundle struct {
	dir, netns string
	caps       []string
	uid        int
	users      bool // it has a user namespace of its own
	hostProc   bool // it sees the host's /proc at proc, and a tmpfs of its own at inside
}

// newBundle serves a network namespace and prepares a container for it.
func newBundle(t *testing.T, cfg sandbox.Config) (*bundle, *sandbox.Network) {
	t.Helper()
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("needs runc")
	}
	space := newContainerNet(t, cfg)
	t.Cleanup(func() { space.end(t) })
	b := &bundle{dir: space.dir, netns: space.netns}
	for _, dir := range []string{b.dir, filepath.Dir(b.dir)} {
		if err := os.Chmod(dir, 0o755); err != nil { // for users of the container
			t.Fatal(err)
		}
	}
	profile, err := sandbox.SeccompProfile(nil, space.listener)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "profile.json"), profile, 0o600); err != nil {
		t.Fatal(err)
	}
	return b, space.n
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

// command returns a command that runs a guest in the container.
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
		{"destination": "/dev", "type": "bind", "source": "/dev", "options": []string{"rbind"}}, // keeps runc from creating one
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
	// The root directory can't itself become the root, so runc gets it under another
	// name.
	const script = `set -e; mkdir -p "$2/root"; chmod 755 "$2/root"; mount --rbind / "$2/root"; exec runc --root "$2/state" run --bundle "$2" "$1"`
	id := strings.NewReplacer("/", "-", ":", ".").Replace(t.Name())
	return exec.CommandContext(testContext(t), "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", id, b.dir)
}

func TestRuncContainer(t *testing.T) {
	if !asRoot(t) {
		return
	}
	fakeInternet(t)
	for _, users := range []bool{false, true} {
		t.Run(fmt.Sprint("user namespace ", users), func(t *testing.T) {
			server := serveTCP(t, outside4, "hello", false)
			closed := closedPort(t, outside4)
			b, n := newBundle(t, sandbox.Config{})
			b.users = users
			got := b.run(t, "dial", "tcp", server.String(), closed.String(), server.String())
			if want := "hello\nECONNREFUSED\nhello"; got != want {
				t.Errorf("the container printed %q, want %q", got, want)
			}
			if s := n.Stats(); s.Supervisor.Connected != 2 || len(s.Supervisor.Kept) != 0 || s.TCPFlows != 0 {
				t.Errorf("counters %+v", s)
			}
		})
	}
}

// A container that could change the host's interfaces by a socket of the host gets none.
func TestContainerThatMayConfigureHost(t *testing.T) {
	if !asRoot(t) {
		return
	}
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	b, n := newBundle(t, sandbox.Config{})
	b.caps = []string{"CAP_NET_ADMIN"}
	if got := b.run(t, "dial", "tcp", server.String()); got != "hello" {
		t.Errorf("the container printed %q", got)
	}
	if s := n.Stats(); s.Supervisor.Connected != 0 || len(s.Supervisor.Kept) != 1 || s.TCPFlows != 1 {
		t.Errorf("counters %+v", s)
	}
	b.users = true // a capability over its own network only
	if got := b.run(t, "dial", "tcp", server.String()); got != "hello" || n.Stats().Supervisor.Connected != 1 {
		t.Errorf("in a user namespace the container printed %q; counters %+v", got, n.Stats())
	}
}

// Binding other sockets than TCP sockets works as without a supervisor.
func TestContainerBinds(t *testing.T) {
	if !asRoot(t) {
		return
	}
	fakeInternet(t)
	tests := []struct {
		name  string
		uid   int
		caps  []string
		users bool
		want  []string
	}{
		{"root without capabilities", 0, nil, false, []string{
			"own directory: ok, mode -rwxr-x---, owner 0:0, peer is the client, 0:0", "foreign directory: EACCES", "address in use: EADDRINUSE",
			"abstract: ok", "autobind: ok", "udp 5353: ok", "udp 53: EACCES", "tcp 80: EACCES", "tcp 8080: ok", "netlink: ok", "net.Listen: ok"}},
		{"a user", 1234, nil, false, []string{
			"own directory: ok, mode -rwxr-x---, owner 1234:1234, peer is the client, 1234:1234", "foreign directory: EACCES", "address in use: EADDRINUSE",
			"abstract: ok", "autobind: ok", "udp 5353: ok", "udp 53: EACCES", "tcp 80: EACCES", "tcp 8080: ok", "netlink: ok", "net.Listen: ok"}},
		{"root with capabilities", 0, []string{"CAP_DAC_OVERRIDE", "CAP_NET_BIND_SERVICE"}, false, []string{
			"own directory: ok, mode -rwxr-x---, owner 0:0, peer is the client, 0:0", "foreign directory: ok", "address in use: EADDRINUSE",
			"abstract: ok", "autobind: ok", "udp 5353: ok", "udp 53: ok", "tcp 80: ok", "tcp 8080: ok", "netlink: ok", "net.Listen: ok"}},
		{"root of a user namespace", 0, []string{"CAP_DAC_OVERRIDE", "CAP_NET_BIND_SERVICE"}, true, []string{
			"own directory: ok, mode -rwxr-x---, owner 0:0, peer is the client, 0:0", "foreign directory: EACCES", "address in use: EADDRINUSE",
			"abstract: ok", "autobind: ok", "udp 5353: ok", "udp 53: EACCES", "tcp 80: EACCES", "tcp 8080: ok", "netlink: ok", "net.Listen: ok"}},
		{"a user of a user namespace", 7, nil, true, []string{
			"own directory: ok, mode -rwxr-x---, owner 7:7, peer is the client, 7:7", "foreign directory: EACCES", "address in use: EADDRINUSE",
			"abstract: ok", "autobind: ok", "udp 5353: ok", "udp 53: EACCES", "tcp 80: EACCES", "tcp 8080: ok", "netlink: ok", "net.Listen: ok"}},
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
			got := strings.Split(b.run(t, "bind-each-kind", own, filepath.Join(others, "socket")), "\n")
			if !slices.Equal(got, tt.want) {
				t.Errorf("the container printed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// bindEachKind binds sockets of all kinds.
func bindEachKind(args []string) error {
	newSocket := func(domain, kind, protocol int) int {
		fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			panic(err)
		}
		return fd
	}
	stream := func() int { return newSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0) }
	unix.Umask(0o027)
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	server := stream()
	if err := unix.Bind(server, &unix.SockaddrUnix{Name: "relative"}); err != nil {
		return fmt.Errorf("own directory: %w", err)
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
	peerName := fmt.Sprint("process ", peer.Pid)
	if int(peer.Pid) == os.Getpid() {
		peerName = "the client"
	}
	fmt.Printf("own directory: ok, mode %s, owner %d:%d, peer is %s, %d:%d\n", strings.Replace(info.Mode().String(), "S", "-", 1), st.Uid, st.Gid, peerName, peer.Uid, peer.Gid)
	report := func(test string, err error) { fmt.Printf("%s: %s\n", test, errnoName(err)) }
	report("foreign directory", unix.Bind(stream(), &unix.SockaddrUnix{Name: args[1]}))
	report("address in use", unix.Bind(stream(), &unix.SockaddrUnix{Name: "relative"}))
	report("abstract", unix.Bind(stream(), &unix.SockaddrUnix{Name: "@cleat-test"}))
	report("autobind", unix.Bind(stream(), &unix.SockaddrUnix{}))
	datagram := func(port int) error {
		return unix.Bind(newSocket(unix.AF_INET, unix.SOCK_DGRAM, 0), &unix.SockaddrInet4{Port: port})
	}
	report("udp 5353", datagram(5353))
	report("udp 53", datagram(53))
	for _, port := range []int{80, 8080} {
		report(fmt.Sprint("tcp ", port), unix.Bind(newSocket(unix.AF_INET, unix.SOCK_STREAM, 0), &unix.SockaddrInet4{Port: port}))
	}
	report("netlink", unix.Bind(newSocket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	l, err := net.Listen("unix", filepath.Join(args[0], "go"))
	if err == nil {
		l.Close()
	}
	report("net.Listen", err)
	return nil
}

// A container that sees the host's /proc can't use the process that binds for it to bind
// outside of the container.
func TestContainerCannotBindOnHost(t *testing.T) {
	fakeInternet(t)
	b, _ := newBundle(t, sandbox.Config{})
	b.hostProc = true
	for _, dir := range []string{"root", "cwd/.."} {
		path := filepath.Join(b.dir, "proc/self") + "/" + dir + b.dir + "/inside/socket"
		if got := b.run(t, "bind-at", path, b.dir); got == "ok" {
			t.Errorf("bound a socket at %s", path)
		}
	}
	if created, err := os.ReadDir(filepath.Join(b.dir, "inside")); err != nil || len(created) != 0 {
		t.Errorf("outside of the container: files %v, error %v", created, err)
	}
}

func bindAt(args []string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	link := filepath.Join(args[1], "link") // the path is too long for an address
	if err := os.Symlink(filepath.Dir(args[0]), link); err != nil {
		return err
	}
	defer os.Remove(link)
	fmt.Println(errnoName(unix.Bind(fd, &unix.SockaddrUnix{Name: link + "/socket"})))
	return nil
}

// The same holds for containers, whose threads Landlock does not keep from TCP.
func TestContainerCannotBypassSupervisor(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", true)
	for _, tt := range []struct{ method, want string }{
		{"io_uring", "ENOSYS"},
		{"fast-open", "sendto ENOTSUP, sendmsg ENOTSUP, sendmmsg ENOTSUP, option ENOPROTOOPT"},
		{"child", "ECONNREFUSED"},
		{"message", "EISCONN"},
		{"pidfd", "EISCONN"},
		{"other-links", "EPERM own: ok"},
		{"changing-address", "done"},
		{"changing-descriptor", "done"},
	} {
		t.Run(tt.method, func(t *testing.T) {
			b, _ := newBundle(t, sandbox.Config{})
			forbidden, arrived := forbiddenServer(t)
			if got := b.run(t, "escape", tt.method, server.String(), forbidden.String()); got != tt.want {
				t.Errorf("the container printed %q, want %q", got, tt.want)
			}
			if n := arrived.Load(); n != 0 {
				t.Errorf("%d connections to the forbidden server", n)
			}
		})
	}
}
