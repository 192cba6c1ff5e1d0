package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cleat/packet"
	"cleat/policy"
	"cleat/sandbox"
	"cleat/usernet/guesttest"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forbiddenAddresses are what no guest may reach under the rule below: each with a judge that
// listens there. The forms of IPv6 are of 127.0.0.1, 169.254.169.254 and 192.0.2.66.
var forbiddenAddresses = []string{
	"127.0.0.1", "127.8.8.8", "169.254.169.254", "169.254.1.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.66",
	"::1", "fe80::a9fe:a9fe", "fec0::1", "fd00:ec2::254", "2001:db8::66",
	"::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::c000:242", "2002:7f00:1::1", "2002:c000:242::1",
	"64:ff9b:1::7f00:1", "64:ff9b:1:7f00:0:100::", "64:ff9b:1:c000:2:4200::", "64:ff9b:1:c0:0:242::", "64:ff9b:1::c0:2:4200:0", "::ffff:0:127.0.0.1",
}

// forbiddenRule denies two of them that are not denied anyhow.
const forbiddenRule = "deny 192.0.2.66\ndeny 2001:db8::66"

// judgePort is where the judges listen.
const judgePort = 7777

// judges listen with TCP and UDP on every address of the lab, and count what arrives at a
// forbidden one.
type judges struct {
	forbidden []netip.Prefix
	arrived   atomic.Int64
	last      atomic.Pointer[netip.Addr] // where
}

func openJudges(t *testing.T) *judges {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	// Every address of these networks is one of ours (AnyIP).
	for _, network := range []string{
		"169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "192.0.2.66/32",
		"fe80::/10", "fec0::/10", "fd00:ec2::254/128", "2001:db8::66/128", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::ffff:0:0:0/96",
	} {
		_, dst, err := net.ParseCIDR(network)
		if err != nil {
			t.Fatal(err)
		}
		r := netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteReplace(&r); err != nil {
			t.Fatalf("route %s: %v", network, err)
		}
	}
	j := &judges{}
	for _, network := range []string{"127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10", "fec0::/10", "::/96"} {
		j.forbidden = append(j.forbidden, netip.MustParsePrefix(network))
	}
	for _, a := range forbiddenAddresses {
		one := netip.MustParseAddr(a).Unmap()
		j.forbidden = append(j.forbidden, netip.PrefixFrom(one, one.BitLen()))
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", judgePort))
	if err != nil {
		t.Fatal(err)
	}
	u, err := net.ListenUDP("udp", &net.UDPAddr{Port: judgePort})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); u.Close() })
	raw, err := u.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	go j.listen(l)
	go j.receive(u)
	return j
}

func (j *judges) listen(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		j.judge(c.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

func (j *judges) receive(u *net.UDPConn) {
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	for {
		_, n, _, _, err := u.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) == 0 || len(messages[0].Data) < 16 {
			j.arrived.Add(1) // nobody knows where
			continue
		}
		j.judge(netip.AddrFrom16([16]byte(messages[0].Data[:16])))
	}
}

// judge counts who arrives at an address. A random guest may hit another one of the lab's, which
// nothing forbids.
func (j *judges) judge(at netip.Addr) {
	at = at.Unmap().WithZone("")
	if slices.ContainsFunc(j.forbidden, func(p netip.Prefix) bool { return p.Contains(at) }) {
		j.last.Store(&at)
		j.arrived.Add(1)
	}
}

// framesToTry is how many frames a random guest sends: CLEAT_FUZZ_FRAMES, or what takes a few
// seconds.
func framesToTry(t *testing.T) uint64 {
	t.Helper()
	s := os.Getenv("CLEAT_FUZZ_FRAMES")
	if s == "" {
		return 200_000
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("CLEAT_FUZZ_FRAMES: %v", err)
	}
	return n
}

// A guest that sends whatever comes to its mind reaches nothing that is forbidden, however it
// spells the address; nothing breaks, and it does not cost more and more.
func TestRandomGuestReachesNothingForbidden(t *testing.T) {
	world(t)
	j := openJudges(t)
	echo := answerTCP(t, outside4, "hello", true)
	rules, err := policy.Parse("rules", strings.NewReader(forbiddenRule))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	n := newNetwork(t, sandbox.Config{
		Tier: sandbox.TierTUN, NoConfigure: true, Policy: p,
		Limits: sandbox.Limits{Flows: 512, BufferBytes: 16 << 20, MemoryBytes: 32 << 20, UDPIdle: 50 * time.Millisecond, UDPReply: 50 * time.Millisecond},
	})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithCancel(t.Context())
	cmd, out := guest(ctx, "random", fmt.Sprint(seed), echo.String())
	ended := make(chan error, 1)
	go func() { ended <- n.Exec(ctx, cmd) }()
	var early int
	frames := framesToTry(t)
	for done := uint64(0); done < frames; {
		select {
		case err := <-ended:
			t.Fatalf("after %d frames: %v: %s", done, err, out)
		default:
		}
		if done = n.Stats().TunOutPackets; early == 0 && done > frames/4 {
			early = residentBytes(t)
		}
		if k := guesttest.Descriptors(t); k > 1200 {
			t.Fatalf("%d open files after %d frames", k, done)
		}
	}
	late := residentBytes(t)
	stats := n.Stats()
	cancel()
	<-ended
	t.Logf("%d frames: %+v", stats.TunOutPackets, stats.Stats)
	if late > early+16<<20 {
		t.Errorf("%d MiB resident after a quarter of the frames, %d MiB at the end", early>>20, late>>20)
	}
	if stats.TCPFlows < 100 || stats.UDPFlows < 100 || stats.Refused < 1000 {
		t.Error("this test does not get far enough to try anything")
	}
	if k := j.arrived.Load(); k != 0 {
		t.Errorf("%d times somebody arrived where nobody may, last at %s", k, j.last.Load())
	}
	// The judges would have noticed.
	c, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", fmt.Sprint(judgePort)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for j.arrived.Load() == 0 {
		if _, err := c.Write([]byte("here")); err != nil {
			t.Fatal(err)
		}
	}
}

// residentBytes is this process's memory.
func residentBytes(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// randomGuest sends random frames by the device, until it is killed. The device has no addresses,
// so that its kernel does not meddle.
func randomGuest(args []string) error {
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	peers := []netip.AddrPort{
		netip.MustParseAddrPort(args[1]), netip.AddrPortFrom(netip.MustParseAddr(outside6), judgePort),
		netip.MustParseAddrPort("10.0.2.3:53"), netip.AddrPortFrom(netip.MustParseAddr("10.0.2.2"), judgePort),
	}
	for _, a := range forbiddenAddresses {
		peers = append(peers, netip.AddrPortFrom(netip.MustParseAddr(a), judgePort))
	}
	dev, err := netlink.LinkByName("cleat0")
	if err == nil {
		err = netlink.LinkSetUp(dev)
	}
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return err
	}
	at := unix.SockaddrLinklayer{Protocol: bits.ReverseBytes16(unix.ETH_P_ALL), Ifindex: dev.Attrs().Index}
	if err := unix.Bind(fd, &at); err != nil {
		return err
	}
	r := guesttest.NewRandom(seed, netip.MustParseAddr("10.0.2.100"), netip.MustParseAddr("fd63:6c65:6174::100"), peers)
	r.Gateway4, r.Gateway6 = netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("fd63:6c65:6174::2")
	answer := make([]byte, 1<<17)
	for {
		frame := r.Frame()
		if len(frame) <= packet.VNetHdrBytes {
			continue
		}
		at.Protocol = bits.ReverseBytes16(unix.ETH_P_IP) // in network byte order
		if frame[packet.VNetHdrBytes]>>4 == 6 {
			at.Protocol = bits.ReverseBytes16(unix.ETH_P_IPV6)
		}
		// The socket's virtio header is shorter by num_buffers.
		short := frame[packet.VNetHdrBytes-10:]
		copy(short[:10], frame[:10])
		_ = unix.Sendto(fd, short, 0, &at) // the kernel refuses what it can't send
		if r.IntN(8) > 0 {
			continue
		}
		for {
			n, _, err := unix.Recvfrom(fd, answer[2:], 0)
			if err != nil || n < 10 {
				break
			}
			r.Learn(answer[:2+n])
		}
	}
}
