package sandbox_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"cleat/internal/sys"
	"cleat/policy"
	"cleat/sandbox"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// hostSocketsPolicy returns a policy that only says which sockets of the host the command
// may have.
func hostSocketsPolicy(t *testing.T, allowed policy.HostSockets) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.Config{Rules: policy.Rules{HostSockets: allowed}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The tier of TierAuto follows the policy.
func TestAutoTierFollowsPolicy(t *testing.T) {
	fakeInternet(t)
	runSupervised(t, sandbox.Config{}, "fds") // skips the test without the seccomp tier
	server := serveTCP(t, outside4, "hello", false)
	for _, tt := range []struct {
		policy sandbox.Policy
		want   sandbox.Tier
	}{{nil, sandbox.TierSplice}, {hostSocketsPolicy(t, ""), sandbox.TierSplice}, {hostSocketsPolicy(t, "none"), sandbox.TierSplice}, {hostSocketsPolicy(t, "tcp"), sandbox.TierSeccomp}} {
		n := newNetwork(t, sandbox.Config{Policy: tt.policy})
		cmd, out := guest(testContext(t), "dial", "tcp", server.String())
		if err := n.Exec(testContext(t), cmd); err != nil || strings.TrimSpace(out.String()) != "hello" {
			t.Errorf("error %v; the guest printed %q, want hello", err, out)
		}
		if tier, reason := n.Tier(); tier != tt.want || reason != "" || (n.Stats().Supervisor.Connected == 1) != (tt.want == sandbox.TierSeccomp) {
			t.Errorf("tier %q, reason %q; want %q; counters %+v", tier, reason, tt.want, n.Stats())
		}
	}
	if n, err := sandbox.New(sandbox.Config{Tier: sandbox.TierSeccomp, Policy: hostSocketsPolicy(t, "none")}); err == nil {
		n.Close()
		t.Error("New accepts the seccomp tier with a policy that allows no host sockets")
	}
}

// If the seccomp tier can't be set up, TierAuto falls back and reports why: there is a
// supervisor already, or a filter denies a call that the supervisor needs.
func TestAutoTierFallsBack(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	for reason, denied := range map[string]uint32{"busy": 1 << 30, "pidfd_getfd": unix.SYS_PIDFD_GETFD} {
		t.Run(reason, func(t *testing.T) {
			filter, err := bpf.Assemble([]bpf.Instruction{
				bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: denied, SkipFalse: 1},
				bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
				bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
			})
			if err != nil {
				t.Fatal(err)
			}
			runtime.LockOSThread() // never unlocked: the thread ends with the test
			listener, err := sys.AddNotifyFilter(filter)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(listener)
			n := newNetwork(t, sandbox.Config{Policy: hostSocketsPolicy(t, "tcp")})
			cmd, out := guest(testContext(t), "dial", "tcp", server.String())
			if err := n.Exec(testContext(t), cmd); err != nil || strings.TrimSpace(out.String()) != "hello" {
				t.Errorf("error %v; the guest printed %q, want hello", err, out)
			}
			if tier, got := n.Tier(); tier != sandbox.TierSplice || !strings.Contains(got, reason) {
				t.Errorf("tier %q because of %q, want %q because of %q", tier, got, sandbox.TierSplice, reason)
			}
		})
	}
}

// A policy that withdraws host sockets takes effect at once.
func TestPolicyWithdrawsHostSockets(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	p := hostSocketsPolicy(t, "tcp")
	n := newNetwork(t, sandbox.Config{Tier: sandbox.TierSeccomp, Policy: p})
	if err := p.Set(policy.Rules{HostSockets: policy.HostSocketsNone}); err != nil {
		t.Fatal(err)
	}
	cmd, out := guest(testContext(t), "dial", "tcp", server.String())
	requireSupervisor(t, n.Exec(testContext(t), cmd), out)
	if s := n.Stats(); strings.TrimSpace(out.String()) != "hello" || s.Supervisor.Connected != 0 || s.TCPFlows != 1 {
		t.Errorf("the guest printed %q; counters %+v", out, s)
	}
}

// UDP sockets are the host's if the policy allows it, and if they are connected to a
// destination outside.
func TestPolicyAllowsUDPHostSockets(t *testing.T) {
	fakeInternet(t)
	server, other := serveUDP(t, outside4, "hello"), serveUDP(t, outside6, "six")
	for allowed, want := range map[policy.HostSockets]uint64{policy.HostSocketsTCP: 0, policy.HostSocketsUDP: 2} {
		got, stats := runSupervised(t, sandbox.Config{Policy: hostSocketsPolicy(t, allowed)}, "dial", "udp", server.String(), other.String())
		if got != "hello\nsix" || stats.Supervisor.Datagram != want || stats.UDPFlows != 2-want {
			t.Errorf("%s: the guest printed %q; counters %+v", allowed, got, stats)
		}
	}
	got, stats := runSupervised(t, sandbox.Config{Policy: hostSocketsPolicy(t, policy.HostSocketsUDP)}, "datagrams", server.String(), other.String())
	want := `connected: from 192.0.2.1, options 33 1 1
again: ok
disconnect: ok, ENOTCONN
to loopback: EADDRNOTAVAIL
bound late: EINVAL, listens: ENOTSUP
bound: from 10.0.2.100
multicast member: from 10.0.2.100
loopback: from 127.0.0.1
refused: from 10.0.2.100
resolver: from 10.0.2.100`
	if got != want || stats.Supervisor.Datagram != 1 {
		t.Errorf("the guest printed\n%s\nwant\n%s\ncounters %+v", got, want, stats)
	}
}

// datagrams is a guest that tries what programs do with UDP sockets.
func datagrams(args []string) error {
	sa := func(text string) *unix.SockaddrInet4 {
		to := netip.MustParseAddrPort(text)
		return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	newSocket := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		return fd
	}
	from := func(fd int, err error) string {
		if err != nil {
			return errnoName(err)
		}
		own, err := unix.Getsockname(fd)
		if err != nil {
			return errnoName(err)
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
	fd := newSocket()
	set(fd, unix.IPPROTO_IP, unix.IP_TTL, 33)
	set(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
	set(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	first := from(fd, unix.Connect(fd, server))
	fmt.Println("connected: "+first+", options", option(fd, unix.IPPROTO_IP, unix.IP_TTL), option(fd, unix.IPPROTO_IP, unix.IP_RECVTTL), option(fd, unix.SOL_UDP, unix.UDP_GRO))
	fmt.Println("again:", errnoName(unix.Connect(fd, server)))
	disconnect := sys.Disconnect(fd)
	_, err := unix.Getpeername(fd)
	fmt.Printf("disconnect: %s, %s\n", errnoName(disconnect), errnoName(err))
	fmt.Println("to loopback:", errnoName(unix.Connect(fd, sa("127.0.0.1:9"))))
	fmt.Printf("bound late: %s, listens: %s\n", errnoName(unix.Bind(fd, &unix.SockaddrInet4{Port: 4445})), errnoName(unix.Listen(fd, 1)))

	fd = newSocket()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 4444}); err != nil {
		return err
	}
	fmt.Println("bound:", from(fd, unix.Connect(fd, server)))
	fd = newSocket()
	if err := unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: [4]byte{239, 1, 1, 1}}); err != nil {
		return err
	}
	fmt.Println("multicast member:", from(fd, unix.Connect(fd, server)))
	fd = newSocket()
	fmt.Println("loopback:", from(fd, unix.Connect(fd, sa("127.0.0.1:9"))))
	fd = newSocket()
	fmt.Println("refused:", from(fd, unix.Connect(fd, sa("169.254.169.254:80"))))
	fd = newSocket()
	fmt.Println("resolver:", from(fd, unix.Connect(fd, sa("10.0.2.3:53"))))
	return nil
}

// Policies with denials can't allow UDP host sockets, which could send to a denied
// address. A denial that is added later holds for new sockets.
func TestDenialsForbidUDPHostSockets(t *testing.T) {
	fakeInternet(t)
	runSupervised(t, sandbox.Config{}, "fds") // skips the test without the seccomp tier
	denial := []policy.Rule{{Prefix: netip.MustParsePrefix("192.0.2.7/32")}}
	p := hostSocketsPolicy(t, policy.HostSocketsUDP)
	if err := p.Set(policy.Rules{HostSockets: policy.HostSocketsUDP, Rules: denial}); err == nil {
		t.Error("a policy with a denial allows UDP host sockets")
	}
	n := newNetwork(t, sandbox.Config{Tier: sandbox.TierSeccomp, Policy: p})
	s := startGuest(t, n.Exec, "wait", "udp", serveUDP(t, outside4, "hello").String())
	if err := p.Set(policy.Rules{HostSockets: policy.HostSocketsTCP, Rules: denial}); err != nil {
		t.Fatal(err)
	}
	s.stdin.Close()
	if err := <-s.result; err != nil {
		t.Error(err)
	}
	if s := n.Stats(); s.Supervisor.Datagram != 0 || s.UDPFlows != 1 {
		t.Errorf("counters %+v", s)
	}
}

// With a configured outbound address, UDP sockets stay the guest's own.
func TestOutboundAddressForbidsUDPHostSockets(t *testing.T) {
	fakeInternet(t)
	server := serveUDP(t, outside4, "hello")
	cfg := sandbox.Config{Policy: hostSocketsPolicy(t, policy.HostSocketsUDP), Outbound4: netip.MustParseAddr(outside4)}
	if got, stats := runSupervised(t, cfg, "dial", "udp", server.String()); got != "hello" || stats.Supervisor.Datagram != 0 {
		t.Errorf("the guest printed %q; counters %+v", got, stats)
	}
}
