package endpoint_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/internal/sys/systest"
	"cleat/link"
	"cleat/tunnel"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forbiddenActions are actions that the process of a tunnel does not need. It may read
// file.
func forbiddenActions(file string) map[string]func() error {
	socket := func(family, kind, protocol int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, protocol)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
	}
	open := func(path string, flags int) func() error {
		return func() error {
			f, err := os.OpenFile(path, flags, 0o600)
			if err == nil {
				f.Close()
			}
			return err
		}
	}
	return map[string]func() error{
		"execute":              func() error { return unix.Exec("/bin/true", []string{"true"}, nil) },
		"fork":                 func() error { _, err := syscall.ForkExec("/bin/true", nil, nil); return err },
		"write a file":         open(file, os.O_WRONLY),
		"create a file":        open(file+".new", os.O_RDONLY|os.O_CREATE),
		"remove a file":        func() error { return os.Remove(file) },
		"modify a file":        func() error { return os.Chmod(file, 0o644) },
		"create a device node": open("/dev/net/tun", os.O_RDWR),
		"trace":                func() error { return unix.PtraceAttach(os.Getppid()) },
		"kill":                 func() error { return unix.Kill(os.Getppid(), 0) },
		"namespace":            func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"mount":                func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") },
		"change the user":      func() error { return unix.Setresuid(0, 0, 0) },
		"raise a limit":        func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) },
		"io_uring":             func() error { return errnoOf(systest.SetUpIOURing()) },
		"executable memory":    executable,
		"raw socket":           socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP),
		"packet socket":        socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0),
		"netfilter":            socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER),
		"TCP":                  socket(unix.AF_INET, unix.SOCK_STREAM, 0),
		"Unix socket":          socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0),
	}
}

func errnoOf(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func executable() error {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		unix.Munmap(b)
	}
	return err
}

// allowedActions tries all forbidden actions and lists those that were allowed.
func allowedActions(file string) []string {
	var all []string
	for name, do := range forbiddenActions(file) {
		if err := do(); !errors.Is(err, unix.EPERM) {
			all = append(all, fmt.Sprintf("%s: %v", name, err))
		}
	}
	return all
}

// TestSealed checks the privileges of each thread, and tries forbidden actions.
func TestSealed(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4, 6}, key: true})
	e := b.ends[0]
	if got := e.command("try"); got != "" {
		t.Errorf("allowed: %s", got)
	}
	statuses, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", e.proc.PID()))
	must(t, err)
	if len(statuses) < 3 {
		t.Fatalf("%d threads", len(statuses))
	}
	caps := uint64(1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_BIND_SERVICE)
	if bindNeedsNetRaw(t) {
		caps |= 1 << unix.CAP_NET_RAW
	}
	set := fmt.Sprintf("%016x", caps)
	want := map[string]string{"CapInh": fmt.Sprintf("%016x", 0), "CapPrm": set, "CapEff": set, "CapAmb": fmt.Sprintf("%016x", 0), "NoNewPrivs": "1", "Seccomp": "2"}
	for _, path := range statuses {
		text, err := os.ReadFile(path)
		must(t, err)
		got := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			if _, ok := want[key]; ok {
				got[key] = strings.TrimSpace(value)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", path, d)
		}
	}
}

// bindNeedsNetRaw reports whether binding to devices takes CAP_NET_RAW, as before Linux
// 5.7.
func bindNeedsNetRaw(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	must(t, err)
	return major < 5 || major == 5 && minor < 7
}

// TestSealedReload replaces the files of both ends: another address and route, another
// path with a privileged port, and one with a device that appears later.
func TestSealedReload(t *testing.T) {
	const port = 443
	b := newTestbed(t, topology{outside: []int{4}, key: true, more: "routes: [203.0.113.0/25]"})
	s := b.startTransfers(2)
	for path := 1; path <= 2; path++ {
		b.addSwitch(path, 4)
	}
	for i, e := range b.ends {
		b.addPathDevice(i, 1)
		text, err := os.ReadFile(e.file)
		must(t, err)
		changed := strings.ReplaceAll(string(text), "203.0.113.0/25", "203.0.113.128/25")
		changed = strings.Replace(changed, "address: [", fmt.Sprintf("address: [%s, ", secondAddress(i)), 1)
		changed += fmt.Sprintf("  - {device: %s, remote: %q, port: %d}\n", deviceName(1), fmt.Sprintf("%s:%d", outerPrefix(1-i, 1, 4).Addr(), port), port)
		changed += fmt.Sprintf("  - {device: %s, remote: %q}\n", deviceName(2), outerPrefix(1-i, 2, 4).Addr())
		must(t, os.WriteFile(e.file+".new", []byte(changed), 0o600))
		must(t, os.Rename(e.file+".new", e.file)) // as editors do
		e.command("reload")
		e.command("reload") // already applied
	}
	b.waitPaths(5*time.Second, 0, 1)
	b.addPathDevice(0, 2)
	b.addPathDevice(1, 2)
	b.waitPaths(5*time.Second, 0, 1, 2)
	for i, e := range b.ends {
		transferTCP(t, e.node, b.ends[1-i].node, secondAddress(1-i).Addr(), 64<<10)
		if d := cmp.Diff([]string{"203.0.113.128/25"}, e.routesTo("203.0.113.")); d != "" {
			t.Errorf("%s: routes: %s", e.name, d)
		}
	}
	if sent, err := s.finish(); err != nil || sent == 0 {
		t.Errorf("sent %d bytes: %v", sent, err)
	}
}

// TestSealedRekey rekeys again and again under traffic.
func TestSealedRekey(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4, 6}, key: true})
	s := b.startTransfers(2)
	for round := range 6 {
		before := b.ends[0].status()
		for _, e := range b.ends {
			e.command("rekey") // one of them initiates
		}
		for _, e := range b.ends {
			var now tunnel.Status
			eventually(t, 5*time.Second, func() bool {
				now = e.status()
				return now.KeyID != before.KeyID
			}, func() string { return fmt.Sprintf("%s still has the old keys in round %d: %+v", e.name, round, now) })
		}
		b.waitPaths(5*time.Second, 0, 1)
		transferTCP(t, b.ends[1].node, b.ends[0].node, innerAddr(0, 4), 1<<20)
	}
	if sent, err := s.finish(); err != nil || sent == 0 {
		t.Errorf("sent %d bytes: %v", sent, err)
	}
}

// secondAddress returns a second address of an end.
func secondAddress(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(9 + i)}), 30)
}

// routesTo lists the destinations of routes through the tunnel that begin with a prefix.
func (e *end) routesTo(prefix string) []string {
	e.t.Helper()
	h, err := link.Handle(e.node.NS)
	must(e.t, err)
	defer h.Close()
	all, err := h.RouteList(nil, netlink.FAMILY_V4)
	must(e.t, err)
	var to []string
	for _, r := range all {
		if r.Dst != nil && strings.HasPrefix(r.Dst.String(), prefix) {
			to = append(to, r.Dst.String())
		}
	}
	return to
}
