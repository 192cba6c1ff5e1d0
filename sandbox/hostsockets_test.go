package sandbox_test

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"cleat/internal/sys"
	"cleat/policy"
	"cleat/sandbox"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// says is a policy without rules that says something about sockets of the host's.
func says(t *testing.T, what policy.HostSockets) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.Config{Rules: policy.Rules{HostSockets: what}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What auto takes is for the policy to say.
func TestAutoAsksThePolicy(t *testing.T) {
	world(t)
	supervised(t, sandbox.Config{}, "fds") // skips where the seccomp tier can't be had
	server := answerTCP(t, outside4, "hello", false)
	for _, tt := range []struct {
		policy sandbox.Policy
		want   sandbox.Tier
	}{{nil, sandbox.TierSplice}, {says(t, ""), sandbox.TierSplice}, {says(t, "none"), sandbox.TierSplice}, {says(t, "tcp"), sandbox.TierSeccomp}} {
		n := newNetwork(t, sandbox.Config{Policy: tt.policy})
		cmd, out := guest(patience(t), "dial", "tcp", server.String())
		if err := n.Exec(patience(t), cmd); err != nil || strings.TrimSpace(out.String()) != "hello" {
			t.Errorf("%v; the guest printed %q", err, out)
		}
		if tier, why := n.Tier(); tier != tt.want || why != "" || (n.Stats().Supervisor.Connected == 1) != (tt.want == sandbox.TierSeccomp) {
			t.Errorf("tier %q, %q; counters %+v", tier, why, n.Stats())
		}
	}
	if n, err := sandbox.New(sandbox.Config{Tier: sandbox.TierSeccomp, Policy: says(t, "none")}); err == nil {
		n.Close()
		t.Error("the tier can be had although the policy says none")
	}
}

// Where the tier can't be had, auto does without it, and says why: there is a
// supervisor already, or a filter refuses what the supervisor would do.
func TestAutoGoesWithout(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	for why, refused := range map[string]uint32{"busy": 1 << 30, "pidfd_getfd": unix.SYS_PIDFD_GETFD} {
		t.Run(why, func(t *testing.T) {
			filter, err := bpf.Assemble([]bpf.Instruction{
				bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: refused, SkipFalse: 1},
				bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
				bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
			})
			if err != nil {
				t.Fatal(err)
			}
			runtime.LockOSThread() // and the thread ends with the test
			listener, err := sys.AddNotifyFilter(filter)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(listener)
			n := newNetwork(t, sandbox.Config{Policy: says(t, "tcp")})
			cmd, out := guest(patience(t), "dial", "tcp", server.String())
			if err := n.Exec(patience(t), cmd); err != nil || strings.TrimSpace(out.String()) != "hello" {
				t.Errorf("%v; the guest printed %q", err, out)
			}
			if tier, says := n.Tier(); tier != sandbox.TierSplice || !strings.Contains(says, why) {
				t.Errorf("tier %q, %q", tier, says)
			}
		})
	}
}

// A policy that says none from then on holds from then on.
func TestPolicyTakesSocketsBack(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	p := says(t, "tcp")
	n := newNetwork(t, sandbox.Config{Tier: sandbox.TierSeccomp, Policy: p})
	if err := p.Set(policy.Rules{HostSockets: policy.HostSocketsNone}); err != nil {
		t.Fatal(err)
	}
	cmd, out := guest(patience(t), "dial", "tcp", server.String())
	needSupervisor(t, n.Exec(patience(t), cmd), out)
	if s := n.Stats(); strings.TrimSpace(out.String()) != "hello" || s.Supervisor.Connected != 0 || s.TCPFlows != 1 {
		t.Errorf("the guest printed %q; counters %+v", out, s)
	}
}

// UDP sockets are the host's where the policy has nothing against it, and only those
// that are connected to what lies outside.
func TestPolicyLetsUDPSockets(t *testing.T) {
	world(t)
	server, other := answerUDP(t, outside4, "hello"), answerUDP(t, outside6, "six")
	for what, want := range map[policy.HostSockets]uint64{policy.HostSocketsTCP: 0, policy.HostSocketsUDP: 2} {
		got, stats := supervised(t, sandbox.Config{Policy: says(t, what)}, "dial", "udp", server.String(), other.String())
		if got != "hello\nsix" || stats.Supervisor.Datagram != want || stats.UDPFlows != 2-want {
			t.Errorf("%s: the guest printed %q; counters %+v", what, got, stats)
		}
	}
	got, stats := supervised(t, sandbox.Config{Policy: says(t, policy.HostSocketsUDP)}, "datagrams", server.String(), other.String())
	want := `connected: from 192.0.2.1, options 33 1 1
again: ok
to nobody: ok, ENOTCONN
to the inside: EADDRNOTAVAIL
bound late: EINVAL, listens: ENOTSUP
bound: from 10.0.2.100
of a group: from 10.0.2.100
inside: from 127.0.0.1
refused: from 10.0.2.100
resolver: from 10.0.2.100`
	if got != want || stats.Supervisor.Datagram != 1 {
		t.Errorf("the guest printed\n%s\nwant\n%s\ncounters %+v", got, want, stats)
	}
}

// datagrams is a guest that tries what a program may do with UDP sockets.
func datagrams(args []string) error {
	sa := func(text string) *unix.SockaddrInet4 {
		to := netip.MustParseAddrPort(text)
		return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	fresh := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		return fd
	}
	from := func(fd int, err error) string {
		if err != nil {
			return name(err)
		}
		own, err := unix.Getsockname(fd)
		if err != nil {
			return name(err)
		}
		return fmt.Sprint("from ", netip.AddrFrom4(own.(*unix.SockaddrInet4).Addr))
	}
	option := func(fd, level, name int) int {
		n, err := unix.GetsockoptInt(fd, level, name)
		if err != nil {
			panic(err)
		}
		return n
	}
	set := func(fd, level, name, value int) {
		if err := unix.SetsockoptInt(fd, level, name, value); err != nil {
			panic(err)
		}
	}
	server := sa(args[0])
	fd := fresh()
	set(fd, unix.IPPROTO_IP, unix.IP_TTL, 33)
	set(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
	set(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	first := from(fd, unix.Connect(fd, server))
	fmt.Println("connected: "+first+", options", option(fd, unix.IPPROTO_IP, unix.IP_TTL), option(fd, unix.IPPROTO_IP, unix.IP_RECVTTL), option(fd, unix.SOL_UDP, unix.UDP_GRO))
	fmt.Println("again:", name(unix.Connect(fd, server)))
	nobody := sys.Disconnect(fd)
	_, err := unix.Getpeername(fd)
	fmt.Printf("to nobody: %s, %s\n", name(nobody), name(err))
	fmt.Println("to the inside:", name(unix.Connect(fd, sa("127.0.0.1:9"))))
	fmt.Printf("bound late: %s, listens: %s\n", name(unix.Bind(fd, &unix.SockaddrInet4{Port: 4445})), name(unix.Listen(fd, 1)))

	fd = fresh()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 4444}); err != nil {
		return err
	}
	fmt.Println("bound:", from(fd, unix.Connect(fd, server)))
	fd = fresh()
	if err := unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: [4]byte{239, 1, 1, 1}}); err != nil {
		return err
	}
	fmt.Println("of a group:", from(fd, unix.Connect(fd, server)))
	fd = fresh()
	fmt.Println("inside:", from(fd, unix.Connect(fd, sa("127.0.0.1:9"))))
	fd = fresh()
	fmt.Println("refused:", from(fd, unix.Connect(fd, sa("169.254.169.254:80"))))
	fd = fresh()
	fmt.Println("resolver:", from(fd, unix.Connect(fd, sa("10.0.2.3:53"))))
	return nil
}

// With a denial they can't be had: they could be sent from to what is denied. One that
// comes later holds for sockets to come.
func TestPolicyWithDenialsLetsNoUDPSockets(t *testing.T) {
	world(t)
	supervised(t, sandbox.Config{}, "fds") // skips where the seccomp tier can't be had
	denial := []policy.Rule{{Prefix: netip.MustParsePrefix("192.0.2.7/32")}}
	p := says(t, policy.HostSocketsUDP)
	if err := p.Set(policy.Rules{HostSockets: policy.HostSocketsUDP, Rules: denial}); err == nil {
		t.Error("a policy with a denial lets UDP sockets be the host's")
	}
	n := newNetwork(t, sandbox.Config{Tier: sandbox.TierSeccomp, Policy: p})
	s := start(t, n.Exec, "dial-then", "udp", answerUDP(t, outside4, "hello").String())
	if err := p.Set(policy.Rules{HostSockets: policy.HostSocketsTCP, Rules: denial}); err != nil {
		t.Fatal(err)
	}
	s.stdin.Close()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	if s := n.Stats(); s.Supervisor.Datagram != 0 || s.UDPFlows != 1 {
		t.Errorf("counters %+v", s)
	}
}

// dialThen is dial, once its input ends.
func dialThen(args []string) error {
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return dial(args)
}

// Sockets that leave by an address of the configuration's stay inside.
func TestUDPSocketsLeaveAsConfigured(t *testing.T) {
	world(t)
	server := answerUDP(t, outside4, "hello")
	cfg := sandbox.Config{Policy: says(t, policy.HostSocketsUDP), Outbound4: netip.MustParseAddr(outside4)}
	if got, stats := supervised(t, cfg, "dial", "udp", server.String()); got != "hello" || stats.Supervisor.Datagram != 0 {
		t.Errorf("the guest printed %q; counters %+v", got, stats)
	}
}
