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

// forbiddenAddresses are addresses that no guest may reach under forbiddenRule. The
// tripwires listen on each. The IPv6 forms are of 127.0.0.1, 169.254.169.254 and
// 192.0.2.66.
var forbiddenAddresses = []string{
	"127.0.0.1", "127.8.8.8", "169.254.169.254", "169.254.1.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.66",
	"::1", "fe80::a9fe:a9fe", "fec0::1", "fd00:ec2::254", "2001:db8::66",
	"::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::c000:242", "2002:7f00:1::1", "2002:c000:242::1",
	"64:ff9b:1::7f00:1", "64:ff9b:1:7f00:0:100::", "64:ff9b:1:c000:2:4200::", "64:ff9b:1:c0:0:242::", "64:ff9b:1::c0:2:4200:0", "::ffff:0:127.0.0.1",
}

// forbiddenRule denies the two that have no default denial.
const forbiddenRule = "deny 192.0.2.66\ndeny 2001:db8::66"

// tripwirePort is where the tripwires listen.
const tripwirePort = 7777

// tripwires listen with TCP and UDP on every address of the lab, and count what arrives
// at a forbidden one.
type tripwires struct {
	forbidden []netip.Prefix
	arrived   atomic.Int64
	last      atomic.Pointer[netip.Addr] // address of the last arrival
}

func openTripwires(t *testing.T) *tripwires {
	t.Helper()
	routeLocally(t, "169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "192.0.2.66/32",
		"fe80::/10", "fec0::/10", "fd00:ec2::254/128", "2001:db8::66/128", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::ffff:0:0:0/96")
	w := &tripwires{}
	for _, network := range []string{"127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10", "fec0::/10", "::/96"} {
		w.forbidden = append(w.forbidden, netip.MustParsePrefix(network))
	}
	for _, a := range forbiddenAddresses {
		one := netip.MustParseAddr(a).Unmap()
		w.forbidden = append(w.forbidden, netip.PrefixFrom(one, one.BitLen()))
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", tripwirePort))
	if err != nil {
		t.Fatal(err)
	}
	u, err := net.ListenUDP("udp", &net.UDPAddr{Port: tripwirePort})
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
	go w.listen(l)
	go w.receive(u)
	return w
}

func (w *tripwires) listen(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		w.record(c.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

func (w *tripwires) receive(u *net.UDPConn) {
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	for {
		_, n, _, _, err := u.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) == 0 || len(messages[0].Data) < 16 {
			w.arrived.Add(1) // at an unknown address
			continue
		}
		w.record(netip.AddrFrom16([16]byte(messages[0].Data[:16])))
	}
}

// record counts an arrival at a forbidden address. A random guest may reach other
// addresses of the lab, which are not forbidden.
func (w *tripwires) record(at netip.Addr) {
	at = at.Unmap().WithZone("")
	if slices.ContainsFunc(w.forbidden, func(p netip.Prefix) bool { return p.Contains(at) }) {
		w.last.Store(&at)
		w.arrived.Add(1)
	}
}

// frameCount is how many frames the random guest sends: CLEAT_FUZZ_FRAMES, or a number
// that takes a few seconds.
func frameCount(t *testing.T) uint64 {
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

// A guest that sends random frames reaches no forbidden address in any form. The data
// path survives, and its memory and descriptors stay bounded.
func TestRandomGuestReachesNothingForbidden(t *testing.T) {
	fakeInternet(t)
	w := openTripwires(t)
	echo := serveTCP(t, outside4, "hello", true)
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
	result := make(chan error, 1)
	go func() { result <- n.Exec(ctx, cmd) }()
	var start int
	frames := frameCount(t)
	for done := uint64(0); done < frames; {
		select {
		case err := <-result:
			t.Fatalf("after %d frames: %v: %s", done, err, out)
		default:
		}
		if done = n.Stats().TunOutPackets; start == 0 && done > frames/4 {
			start = residentBytes(t)
		}
		if k := guesttest.Descriptors(t); k > 1200 {
			t.Fatalf("%d open files after %d frames", k, done)
		}
	}
	end := residentBytes(t)
	stats := n.Stats()
	cancel()
	<-result
	t.Logf("%d frames: %+v", stats.TunOutPackets, stats.Stats)
	if end > start+16<<20 {
		t.Errorf("%d MiB resident after a quarter of the frames, %d MiB at the end", start>>20, end>>20)
	}
	if stats.TCPFlows < 100 || stats.UDPFlows < 100 || stats.Refused < 1000 {
		t.Error("too few flows to test anything")
	}
	if k := w.arrived.Load(); k != 0 {
		t.Errorf("%d arrivals at forbidden addresses, the last at %s", k, w.last.Load())
	}
	// The tripwires work.
	c, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", fmt.Sprint(tripwirePort)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for w.arrived.Load() == 0 {
		if _, err := c.Write([]byte("here")); err != nil {
			t.Fatal(err)
		}
	}
}

// residentBytes returns this process's resident memory.
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

// randomGuest sends random frames over the device until it is killed. The device has no
// addresses, so that the guest's kernel does not respond.
func randomGuest(args []string) error {
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	peers := []netip.AddrPort{
		netip.MustParseAddrPort(args[1]), netip.AddrPortFrom(netip.MustParseAddr(outside6), tripwirePort),
		netip.MustParseAddrPort("10.0.2.3:53"), netip.AddrPortFrom(netip.MustParseAddr("10.0.2.2"), tripwirePort),
	}
	for _, a := range forbiddenAddresses {
		peers = append(peers, netip.AddrPortFrom(netip.MustParseAddr(a), tripwirePort))
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
		// The socket's virtio header lacks num_buffers.
		short := frame[packet.VNetHdrBytes-10:]
		copy(short[:10], frame[:10])
		_ = unix.Sendto(fd, short, 0, &at) // fails for frames that the kernel can't send
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
