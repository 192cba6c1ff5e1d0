package sandbox_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestGuestView(t *testing.T) {
	lab.Need(t)
	tests := []struct {
		name  string
		cfg   sandbox.Config
		guest string
		args  []string
		want  string
	}{
		{"resolver", sandbox.Config{DNS: sandbox.DNS{Search: []string{}}}, "show", []string{"/etc/resolv.conf"}, "nameserver 10.0.2.3"},
		{"search list", sandbox.Config{DNS: sandbox.DNS{Search: []string{"example.com"}}}, "show", []string{"/etc/resolv.conf"}, "search example.com nameserver 10.0.2.3"},
		{"no router advertisements", sandbox.Config{}, "show", []string{"/proc/sys/net/ipv6/conf/cleat0/accept_ra"}, "0"},
		{"MTU", sandbox.Config{Interface: "eth7", MTU: 1500}, "show", []string{"/proc/sys/net/ipv6/conf/eth7/mtu"}, "1500"},
		{"IPv6 address", sandbox.Config{}, "show", []string{"/proc/net/if_inet6"},
			"00000000000000000000000000000001 01 80 10 80 lo fd636c65617400000000000000000100 02 40 00 82 cleat0"},
		{"no IPv6", sandbox.Config{NoIPv6: true}, "show", []string{"/proc/net/if_inet6"}, "00000000000000000000000000000001 01 80 10 80 lo"},
		{"low ports", sandbox.Config{}, "show", []string{"/proc/sys/net/ipv4/ip_unprivileged_port_start"}, "0"},
		{"not configured", sandbox.Config{NoConfigure: true}, "show", []string{"/proc/net/if_inet6"}, "00000000000000000000000000000001 01 80 10 80 lo"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Split(runGuest(t, tt.cfg, tt.guest, tt.args...), "\n")
			want := strings.Split(tt.want, "\n")
			if d := cmp.Diff(sorted(want), sorted(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

// The IPv6 address has a local route before the command starts. The kernel's own comes later,
// and without one the answer to a first datagram is dropped.
func TestIPv6AddressIsLocalAtOnce(t *testing.T) {
	lab.Need(t)
	none := strings.Repeat("0", 32)
	want := "fd636c65617400000000000000000100 80 " + none + " 00 " + none + " 00000400 "
	if got := runGuest(t, sandbox.Config{}, "show", "/proc/net/ipv6_route"); !strings.Contains(got, want) {
		t.Errorf("the routes are %q, want %q among them", got, want)
	}
}

// A command has the same open descriptors with and without the network.
func TestGuestInheritsNoDescriptors(t *testing.T) {
	lab.Need(t)
	cmd, plain := guest(testContext(t), "fds")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	want, got := strings.TrimSpace(plain.String()), runGuest(t, sandbox.Config{}, "fds")
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// sorted sorts the lines of a table whose order the kernel does not guarantee.
func sorted(lines []string) []string {
	if len(lines) == 1 && strings.Contains(lines[0], "lo") {
		f := strings.Fields(lines[0])
		var rows []string
		for i := 0; i+6 <= len(f); i += 6 {
			rows = append(rows, strings.Join(f[i:i+6], " "))
		}
		lines = rows
	}
	return slices.Sorted(slices.Values(lines))
}

func TestTCP(t *testing.T) {
	fakeInternet(t)
	four := serveTCP(t, outside4, "four", false)
	six := serveTCP(t, outside6, "six", false)
	got := runGuest(t, sandbox.Config{}, "dial", "tcp", four.String(), six.String())
	if got != "four\nsix" {
		t.Errorf("the guest printed %q", got)
	}
}

func TestTCPManyBytes(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "", true)
	if got := runGuest(t, sandbox.Config{}, "echo", server.String()); got != "same" {
		t.Errorf("the guest printed %q", got)
	}
}

func TestUDP(t *testing.T) {
	fakeInternet(t)
	four := serveUDP(t, outside4, "four")
	six := serveUDP(t, outside6, "six")
	if got := runGuest(t, sandbox.Config{}, "dial", "udp", four.String(), six.String()); got != "four\nsix" {
		t.Errorf("the guest printed %q", got)
	}
}

func TestPing(t *testing.T) {
	fakeInternet(t)
	if got := runGuest(t, sandbox.Config{}, "ping", outside4); got != "10 "+outside4 {
		t.Errorf("the guest printed %q", got)
	}
}

func TestHostLoopback(t *testing.T) {
	fakeInternet(t)
	four := serveTCP(t, "127.0.0.1", "four", false)
	six := serveTCP(t, "::1", "six", false)
	gateway4, gateway6 := "10.0.2.2", "[fd63:6c65:6174::2]"
	tests := []struct {
		name string
		cfg  sandbox.Config
		want string
	}{
		{"off", sandbox.Config{}, "ECONNREFUSED\nECONNREFUSED"},
		{"on", sandbox.Config{HostLoopback4: netip.MustParseAddr("10.0.2.2"), HostLoopback6: netip.MustParseAddr("fd63:6c65:6174::2")}, "four\nsix"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := runGuest(t, tt.cfg, "dial", "tcp", withAddr(four, gateway4), withAddr(six, gateway6)); got != tt.want {
				t.Errorf("the guest printed %q, want %q", got, tt.want)
			}
		})
	}
}

func TestMapping(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "mapped", false)
	cfg := sandbox.Config{Mappings: []sandbox.Mapping{{Guest: netip.MustParseAddr("169.254.1.2"), Host: netip.MustParseAddr(outside4)}}}
	if got := runGuest(t, cfg, "dial", "tcp", withAddr(server, "169.254.1.2"), withAddr(server, "169.254.1.3")); got != "mapped\nECONNREFUSED" {
		t.Errorf("the guest printed %q", got)
	}
}

type policyFunc func(sandbox.Flow) sandbox.Verdict

func (f policyFunc) Judge(flow sandbox.Flow) sandbox.Verdict { return f(flow) }

func TestPolicy(t *testing.T) {
	fakeInternet(t)
	a, b := serveTCP(t, outside4, "a", false), serveTCP(t, outside4, "b", false)
	local := serveTCP(t, "127.0.0.1", "local", false)
	cfg := sandbox.Config{
		HostLoopback4: netip.MustParseAddr("10.0.2.2"),
		Policy: policyFunc(func(f sandbox.Flow) sandbox.Verdict {
			switch f.Destination.Port() {
			case a.Port():
				return sandbox.Verdict{Action: sandbox.Refuse}
			case 7:
				return sandbox.Verdict{Action: sandbox.Redirect, To: b}
			}
			return sandbox.Verdict{}
		}),
	}
	got := runGuest(t, cfg, "dial", "tcp", a.String(), b.String(), outside4+":7", withAddr(local, "10.0.2.2"), "169.254.169.254:80")
	if want := "ECONNREFUSED\nb\nb\nlocal\nECONNREFUSED"; got != want {
		t.Errorf("the guest printed %q, want %q", got, want)
	}
}

// With NoDefaultDenials a Policy may allow what the default denials forbid.
func TestNoDefaultDenials(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "redirected", false)
	all := policyFunc(func(sandbox.Flow) sandbox.Verdict {
		return sandbox.Verdict{Action: sandbox.Redirect, To: server}
	})
	for want, cfg := range map[string]sandbox.Config{
		"ECONNREFUSED": {Policy: all},
		"redirected":   {Policy: all, NoDefaultDenials: true},
	} {
		if got := runGuest(t, cfg, "dial", "tcp", "169.254.169.254:80"); got != want {
			t.Errorf("the guest printed %q, want %q", got, want)
		}
	}
}

func TestHookReturnsConnection(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, "127.0.0.1", "by hook", false)
	var flows []string
	cfg := sandbox.Config{Hook: func(ctx context.Context, f sandbox.Flow, names []string) sandbox.Verdict {
		flows = append(flows, f.Destination.String())
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", server.String())
		if err != nil {
			return sandbox.Verdict{Action: sandbox.Refuse}
		}
		return sandbox.Verdict{Action: sandbox.Use, Conn: c}
	}}
	if got := runGuest(t, cfg, "dial", "tcp", "198.51.100.7:80"); got != "by hook" {
		t.Errorf("the guest printed %q", got)
	}
	if d := cmp.Diff([]string{"198.51.100.7:80"}, flows); d != "" {
		t.Error(d)
	}
}

func TestCommandNotExecutable(t *testing.T) {
	lab.Need(t)
	cmd := exec.Command("/etc/passwd")
	err := newNetwork(t, sandbox.Config{}).Exec(testContext(t), cmd)
	var setup *sandbox.SetupError
	if !errors.As(err, &setup) || !errors.Is(err, unix.EACCES) || setup.Step != `execute "/etc/passwd"` {
		t.Errorf("got error %v, want EACCES of executing /etc/passwd", err)
	}
	if cmd.ProcessState.ExitCode() != 125 {
		t.Errorf("exit code %d, want 125", cmd.ProcessState.ExitCode())
	}
}

func TestCommandNotFound(t *testing.T) {
	lab.Need(t)
	err := newNetwork(t, sandbox.Config{}).Exec(testContext(t), exec.Command("no-such-command-here"))
	if !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("got error %v, want %v", err, exec.ErrNotFound)
	}
}

func TestExitCode(t *testing.T) {
	lab.Need(t)
	err := newNetwork(t, sandbox.Config{}).Exec(testContext(t), exec.Command("sh", "-c", "exit 7"))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("got error %v, want exit code 7", err)
	}
}

// A caller may end Run as soon as it has flows the command end. The reason why the command
// did not start must not be lost.
func TestExecErrorIsNotLost(t *testing.T) {
	lab.Need(t)
	cmd := exec.Command("/etc/passwd")
	n := newNetwork(t, sandbox.Config{})
	if err := errors.Join(n.Wrap(cmd), cmd.Start(), n.Prepare(testContext(t))); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(testContext(t))
	result := make(chan error, 1)
	go func() { result <- n.Run(ctx) }()
	cmd.Wait()
	stop()
	if err := <-result; !errors.Is(err, unix.EACCES) {
		t.Errorf("got error %v, want %v", err, unix.EACCES)
	}
}
