package usernettest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/packet"
	"cleat/usernet"
	"cleat/usernet/usernettest"

	"golang.org/x/sys/unix"
)

// The data path by itself: a process that inherits an open device and runs a Stack, with
// as much policy as the suite needs.

const (
	stackArg = "usernettest-stack"
	device   = "tun0"
)

// stackConfig is the configuration of the process.
type stackConfig struct {
	MTU       int
	Forwards  []usernettest.Forward
	Redirects map[netip.AddrPort]netip.AddrPort // port 0: all ports
}

var (
	guest    = map[usernettest.Family]netip.Prefix{usernettest.V4: netip.MustParsePrefix("10.0.2.100/24"), usernettest.V6: netip.MustParsePrefix("fd00:2::100/64")}
	gateway  = map[usernettest.Family]netip.Addr{usernettest.V4: netip.MustParseAddr("10.0.2.2"), usernettest.V6: netip.MustParseAddr("fd00:2::2")}
	resolver = map[usernettest.Family]netip.AddrPort{usernettest.V4: netip.MustParseAddrPort("10.0.2.3:53"), usernettest.V6: netip.MustParseAddrPort("[fd00:2::3]:53")}
	loopback = map[usernettest.Family]netip.Addr{usernettest.V4: netip.MustParseAddr("10.0.2.4"), usernettest.V6: netip.MustParseAddr("fd00:2::4")}
	own      = map[usernettest.Family]netip.Addr{usernettest.V4: netip.MustParseAddr("127.0.0.1"), usernettest.V6: netip.MustParseAddr("::1")}
)

// answerStack runs a Stack if this process was started for that.
func answerStack() {
	if len(os.Args) != 3 || os.Args[1] != stackArg {
		return
	}
	if err := runStack(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runStack(text string) error {
	var c stackConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	cfg := usernet.Config{
		TUN: os.NewFile(3, "tun"), MTU: c.MTU,
		Guest4: guest[usernettest.V4].Addr(), Gateway4: gateway[usernettest.V4], Policy: redirects(c.Redirects),
	}
	if c.MTU >= minIPv6MTU {
		cfg.Guest6, cfg.Gateway6 = guest[usernettest.V6].Addr(), gateway[usernettest.V6]
	}
	s, err := usernet.New(cfg)
	if err != nil {
		return err
	}
	for _, fw := range c.Forwards {
		proto := map[string]packet.Protocol{"tcp": packet.TCP, "udp": packet.UDP}[fw.Proto]
		for n := range uint16(fw.Count) {
			if _, err := s.Forward(usernet.Forward{
				Protocol: proto, Listen: netip.AddrPortFrom(fw.Addr, fw.Port+n), To: netip.AddrPortFrom(netip.Addr{}, fw.To+n),
			}); err != nil && !errors.Is(err, errors.ErrUnsupported) {
				return err
			}
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return s.Run(ctx)
}

// minIPv6MTU is the smallest MTU of a link with IPv6 (RFC 8200, section 5).
const minIPv6MTU = 1280

// redirects is a Policy that allows everything and redirects some of it.
type redirects map[netip.AddrPort]netip.AddrPort

func (r redirects) Judge(f usernet.Flow) usernet.Verdict {
	for _, port := range []uint16{f.Destination.Port(), 0} {
		if to, ok := r[netip.AddrPortFrom(f.Destination.Addr(), port)]; ok {
			if to.Port() == 0 {
				to = netip.AddrPortFrom(to.Addr(), f.Destination.Port())
			}
			return usernet.Verdict{Action: usernet.Redirect, To: to}
		}
	}
	return usernet.Verdict{}
}

func stackPath() usernettest.Path {
	const above = "decided above the data path"
	return usernettest.Path{
		Name: "usernet", Version: "this",
		Lacks: map[usernettest.Ability]string{
			usernettest.Policy: above, usernettest.NamePolicy: above, usernettest.ForwardAuto: above,
		},
		Start: startStack,
	}
}

func startStack(ctx context.Context, s *usernettest.Topology, o usernettest.Options) (*usernettest.Instance, error) {
	mtu := o.MTU
	if mtu == 0 {
		mtu = 65520
	}
	c := stackConfig{MTU: mtu, Forwards: o.Forwards, Redirects: map[netip.AddrPort]netip.AddrPort{}}
	for f, at := range resolver {
		c.Redirects[at] = netip.AddrPortFrom(usernettest.OutsideAddr(f), 53)
		if o.Loopback {
			c.Redirects[netip.AddrPortFrom(loopback[f], 0)] = netip.AddrPortFrom(own[f], 0)
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	t, err := link.OpenTun(s.Container.NS, link.TunSpec{Attrs: link.Attrs{Name: device, MTU: mtu}, VNetHdr: true})
	if err != nil {
		return nil, err
	}
	// The device exists as long as any descriptor of it, and the process has its own.
	defer func() {
		for _, f := range t.Files() {
			f.Close()
		}
	}()
	if err := t.OffloadAll(); err != nil {
		return nil, err
	}
	for f, p := range guest {
		if f == usernettest.V6 && mtu < minIPv6MTU {
			continue
		}
		if err := s.Container.Address(device, p); err != nil {
			return nil, err
		}
		if err := usernettest.AddRoute(s.Container, netip.Prefix{}, gateway[f]); err != nil {
			return nil, err
		}
	}
	i, err := s.Launch([]string{lab.Self, stackArg, string(text)}, t.Files()...)
	if err != nil {
		return nil, err
	}
	i.Device, i.Nameserver, i.Loopback = device, resolver, loopback
	// The forwards are ready when the first one is.
	if len(o.Forwards) > 0 {
		err = s.AwaitPort(ctx, i, o.Forwards[0])
	}
	return i, err
}

// TestStack runs the suite on the data path by itself.
func TestStack(t *testing.T) {
	lab.Need(t)
	if !*all {
		t.Skip("the data path runs by itself only with -all; cleat run contains it")
	}
	if err := link.Probe("tun"); err != nil {
		var lack *link.Lack
		if errors.As(err, &lack) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	usernettest.Run(t, stackPath(), settings(), match(t))
}
