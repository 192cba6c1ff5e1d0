package sandbox_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestWhatTheGuestSees(t *testing.T) {
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
		{"left to others", sandbox.Config{NoConfigure: true}, "show", []string{"/proc/net/if_inet6"}, "00000000000000000000000000000001 01 80 10 80 lo"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Split(run(t, tt.cfg, tt.guest, tt.args...), "\n")
			want := strings.Split(tt.want, "\n")
			if d := cmp.Diff(sorted(want), sorted(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

// What a command finds open is what it would find without us.
func TestNothingOfOursIsOpen(t *testing.T) {
	lab.Need(t)
	cmd, plain := guest(patience(t), "fds")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	want, got := strings.TrimSpace(plain.String()), run(t, sandbox.Config{}, "fds")
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// sorted sorts the lines of a table whose order the kernel does not promise.
func sorted(lines []string) []string {
	if len(lines) == 1 && strings.Contains(lines[0], "lo") {
		f := strings.Fields(lines[0])
		var rows []string
		for i := 0; i+6 <= len(f); i += 6 {
			rows = append(rows, strings.Join(f[i:i+6], " "))
		}
		lines = rows
	}
	out := append([]string{}, lines...)
	for i := range out {
		for j := i + 1; j < len(out); j++ {
			if out[j] < out[i] {
				out[i], out[j] = out[j], out[i]
			}
		}
	}
	return out
}

func TestTCPGoesOut(t *testing.T) {
	world(t)
	four := answerTCP(t, outside4, "four", false)
	six := answerTCP(t, outside6, "six", false)
	got := run(t, sandbox.Config{}, "dial", "tcp", four.String(), six.String())
	if got != "four\nsix" {
		t.Errorf("the guest got %q", got)
	}
}

func TestManyBytesComeBack(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "", true)
	if got := run(t, sandbox.Config{}, "echo", server.String()); got != "same" {
		t.Errorf("got %q", got)
	}
}

func TestUDPGoesOut(t *testing.T) {
	world(t)
	four := answerUDP(t, outside4, "four")
	six := answerUDP(t, outside6, "six")
	if got := run(t, sandbox.Config{}, "dial", "udp", four.String(), six.String()); got != "four\nsix" {
		t.Errorf("the guest got %q", got)
	}
}

func TestPing(t *testing.T) {
	world(t)
	if got := run(t, sandbox.Config{}, "ping", outside4); got != "10 "+outside4 {
		t.Errorf("the guest got %q", got)
	}
}

func TestHostLoopback(t *testing.T) {
	world(t)
	four := answerTCP(t, "127.0.0.1", "four", false)
	six := answerTCP(t, "::1", "six", false)
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
			if got := run(t, tt.cfg, "dial", "tcp", at(four, gateway4), at(six, gateway6)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestMapping(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "mapped", false)
	cfg := sandbox.Config{Mappings: []sandbox.Mapping{{Guest: netip.MustParseAddr("169.254.1.2"), Host: netip.MustParseAddr(outside4)}}}
	if got := run(t, cfg, "dial", "tcp", at(server, "169.254.1.2"), at(server, "169.254.1.3")); got != "mapped\nECONNREFUSED" {
		t.Errorf("got %q", got)
	}
}

type policyFunc func(sandbox.Flow) sandbox.Verdict

func (f policyFunc) Judge(flow sandbox.Flow) sandbox.Verdict { return f(flow) }

func TestPolicy(t *testing.T) {
	world(t)
	a, b := answerTCP(t, outside4, "a", false), answerTCP(t, outside4, "b", false)
	local := answerTCP(t, "127.0.0.1", "local", false)
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
	got := run(t, cfg, "dial", "tcp", a.String(), b.String(), outside4+":7", at(local, "10.0.2.2"), "169.254.169.254:80")
	if want := "ECONNREFUSED\nb\nb\nlocal\nECONNREFUSED"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A Policy that is asked about everything may do what the default denials forbid.
func TestNoDefaultDenials(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "redirected", false)
	all := policyFunc(func(sandbox.Flow) sandbox.Verdict {
		return sandbox.Verdict{Action: sandbox.Redirect, To: server}
	})
	for want, cfg := range map[string]sandbox.Config{
		"ECONNREFUSED": {Policy: all},
		"redirected":   {Policy: all, NoDefaultDenials: true},
	} {
		if got := run(t, cfg, "dial", "tcp", "169.254.169.254:80"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestHookHandsBackItsConnection(t *testing.T) {
	world(t)
	server := answerTCP(t, "127.0.0.1", "by hook", false)
	var seen []string
	cfg := sandbox.Config{Hook: func(ctx context.Context, f sandbox.Flow, names []string) sandbox.Verdict {
		seen = append(seen, f.Destination.String())
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", server.String())
		if err != nil {
			return sandbox.Verdict{Action: sandbox.Refuse}
		}
		return sandbox.Verdict{Action: sandbox.Use, Conn: c}
	}}
	if got := run(t, cfg, "dial", "tcp", "198.51.100.7:80"); got != "by hook" {
		t.Errorf("got %q", got)
	}
	if d := cmp.Diff([]string{"198.51.100.7:80"}, seen); d != "" {
		t.Error(d)
	}
}

func TestCommandThatCannotBeExecuted(t *testing.T) {
	lab.Need(t)
	cmd := exec.Command("/etc/passwd")
	err := newNetwork(t, sandbox.Config{}).Exec(patience(t), cmd)
	var setup *sandbox.SetupError
	if !errors.As(err, &setup) || !errors.Is(err, unix.EACCES) || setup.Step != `execute "/etc/passwd"` {
		t.Errorf("error %v", err)
	}
	if cmd.ProcessState.ExitCode() != 125 {
		t.Errorf("exit code %d", cmd.ProcessState.ExitCode())
	}
}

func TestCommandThatDoesNotExist(t *testing.T) {
	lab.Need(t)
	err := newNetwork(t, sandbox.Config{}).Exec(patience(t), exec.Command("no-such-command-here"))
	if !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}

func TestExitCodeOfTheCommand(t *testing.T) {
	lab.Need(t)
	err := newNetwork(t, sandbox.Config{}).Exec(patience(t), exec.Command("sh", "-c", "exit 7"))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("error %v", err)
	}
}

// Callers may end Run as soon as they have seen the command end: why it could
// not begin must not be lost.
func TestWhyACommandDidNotBeginIsNotLost(t *testing.T) {
	lab.Need(t)
	cmd := exec.Command("/etc/passwd")
	n := newNetwork(t, sandbox.Config{})
	if err := errors.Join(n.Wrap(cmd), cmd.Start(), n.Prepare(patience(t))); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(patience(t))
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	cmd.Wait()
	stop()
	if err := <-ended; !errors.Is(err, unix.EACCES) {
		t.Errorf("error %v", err)
	}
}
