package named_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"cleat/internal/localsock"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/network/named"
	"cleat/network/names"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// startKeeper runs a keeper on the host until the test ends, and waits until names are served.
func (tb *testbed) startKeeper() *named.Keeper {
	tb.t.Helper()
	k, _ := tb.startKeeperWith(func(*named.Keeper) {})
	return k
}

// startKeeperWith is startKeeper. prepare is called before the keeper runs.
func (tb *testbed) startKeeperWith(prepare func(*named.Keeper)) (k *named.Keeper, protected bool) {
	tb.t.Helper()
	must(tb.t, os.MkdirAll(tb.state, 0o755))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	start := func() error {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), serveNamesEnv+"="+named.NameServerPath(tb.store))
		if err := cmd.Start(); err != nil {
			return err
		}
		go cmd.Wait()
		return nil
	}
	k = named.NewKeeper(named.KeeperConfig{Config: tb.cfg, StartNameServer: start, Log: tb.t.Logf})
	prepare(k)
	go func() {
		defer close(ended)
		_ = tb.host.Do(func() error { k.Run(ctx); return nil })
	}()
	tb.stopKeeper = func() { cancel(); <-ended }
	tb.t.Cleanup(func() {
		tb.stopKeeper()
		if c, err := names.Dial(context.Background(), named.NameServerPath(tb.store)); err == nil {
			if state, err := c.State(context.Background()); err == nil {
				_ = syscall.Kill(state.PID, syscall.SIGKILL)
			}
			c.Close()
		}
	})
	must(tb.t, named.WaitForNames(tb.t.Context(), tb.store))
	tb.cfg.Rules = k.Rules() // as of commands that a keeper runs
	owner, _ := tb.cfg.Rules.(*firewall.Owner)
	return k, owner != nil && owner.Protected()
}

// The name server ends with the last network, even if the keeper ends before it has noticed.
func TestNameServerEnds(t *testing.T) {
	tb := newTestbed(t)
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.20.0.0/24")}}}))
	tb.startKeeper()
	must(t, tb.remove("web", false))
	tb.stopKeeper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := names.Dial(t.Context(), named.NameServerPath(tb.store))
		if errors.Is(err, names.ErrNotRunning) {
			return
		}
		if err == nil {
			c.Close()
		}
		if time.Now().After(deadline) {
			t.Fatal("the name server goes on")
		}
	}
}

// A network is created while the name server of networks that are gone ends.
func TestCreateWhileNameServerEnds(t *testing.T) {
	tb := newTestbed(t)
	must(t, os.MkdirAll(tb.state, 0o755))
	l, err := localsock.ListenFile(named.NameServerPath(tb.store))
	must(t, err)
	defer l.Close()
	asked := make(chan bool, 100)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Close() // without an answer
			asked <- true
		}
	}()
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.20.0.0/24")}}}))
	<-asked
	must(t, l.Close())
	tb.startKeeper() // its name server knows the network
}

// resolve asks the name server at a gateway from a namespace; no addresses if there is no answer.
func resolve(ns *netns.NS, server netip.Addr, name string) (addrs []netip.Addr) {
	r := net.Resolver{PreferGo: true, Dial: dialer(ns, server)}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	addrs, _ = r.LookupNetIP(ctx, "ip4", name)
	return addrs
}

// dialer connects from a namespace to a name server.
func dialer(ns *netns.NS, server netip.Addr) func(ctx context.Context, network, _ string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = ns.Do(func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, network, netip.AddrPortFrom(server, 53).String())
			return err
		})
		return c, err
	}
}

// upstream serves DNS at an address of a namespace: every name has this address.
func upstream(t *testing.T, ns *netns.NS, at netip.Addr, address netip.Addr) {
	t.Helper()
	var c net.PacketConn
	must(t, ns.Do(func() (err error) {
		c, err = net.ListenPacket("udp", netip.AddrPortFrom(at, 53).String())
		return err
	}))
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			answer := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
			if q.Type == dnsmessage.TypeA {
				answer.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}, Body: &dnsmessage.AResource{A: address.As4()}}}
			}
			text, _ := answer.Pack()
			c.WriteTo(text, from)
		}
	}()
}

// A rule about a DNS name opens the addresses that a container learns for it, before it can use
// them; and the name server is started again when it ends.
func TestNames(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	outside := netip.MustParseAddr("198.51.100.2")
	upstream(t, tb.outside, outside, outside)
	answer(t, tb.outside, 80)
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1), DNS: []netip.Addr{outside}}))
	tb.startKeeper()
	for _, c := range []string{"a", "b"} {
		_, err := tb.connect("web", c, named.Connection{Aliases: []string{"both"}})
		must(t, err)
	}
	gateway, a := netip.MustParseAddr("10.20.1.1"), tb.containers["a"]
	for name, want := range map[string]int{"b": 1, "b.web": 1, "both": 2, "nobody": 0} {
		if got := resolve(a, gateway, name+"."); len(got) != want {
			t.Errorf("%s: got %v, want %d addresses", name, got, want)
		}
	}
	for _, rule := range []struct {
		allow bool
		text  string
	}{{false, "web/a to any"}, {true, "web/a to *.example.test:80"}} {
		must(t, tb.onHost(func() error {
			do := named.Deny
			if rule.allow {
				do = named.Allow
			}
			_, err := do(t.Context(), tb.cfg, rule.text)
			return err
		}))
	}
	if got := ask(a, "198.51.100.2:80"); got != "" {
		t.Error("a denied address is reached before its name is learned")
	}
	if got := resolve(a, gateway, "www.example.test."); len(got) != 1 || got[0].Unmap() != outside {
		t.Fatalf("resolve: got %v", got)
	}
	if got := ask(a, "198.51.100.2:80"); got == "" {
		t.Error("the address of an allowed name is not reached")
	}
	if got := ask(tb.containers["b"], "198.51.100.2:80"); got == "" {
		t.Error("who is not denied does not reach it")
	}
	tb.killNameServer()
	deadline := time.Now().Add(10 * time.Second)
	for len(resolve(a, gateway, "b.")) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the name server is not back")
		}
	}
}

// inVRF makes a VRF with network web in it, and skips the test if the kernel has none.
func (tb *testbed) inVRF(h *netlink.Handle) *netlink.Vrf {
	tb.t.Helper()
	blue := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "blue"}, Table: 10}
	err := h.LinkAdd(blue)
	if errors.Is(err, unix.EOPNOTSUPP) {
		tb.t.Skip("the kernel has no VRFs")
	}
	must(tb.t, errors.Join(err, h.LinkSetUp(blue)))
	must(tb.t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)[:1], EngineSpec: named.EngineSpec{VRF: "blue"}}))
	return blue
}

// A port of a network in a VRF is taken if a program has it there, and not if one has it elsewhere.
func TestTakenInVRF(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	h, err := link.Handle(tb.host)
	must(t, err)
	defer h.Close()
	blue := tb.inVRF(h)
	address, err := netlink.ParseAddr("192.0.2.9/32")
	must(t, errors.Join(err, h.AddrAdd(blue, address)))
	for vrf, at := range map[string]string{"": "198.51.100.1:8080", "blue": "192.0.2.9:8081"} {
		must(t, tb.onHost(func() error {
			udp, tcp, err := names.OpenInVRF(vrf, netip.MustParseAddrPort(at))
			if err == nil {
				t.Cleanup(func() { udp.Close(); tcp.Close() })
			}
			return err
		}))
	}
	ports := func(a string, port uint16) named.Connection {
		p := named.Port{Protocol: "tcp", HostPort: port, Port: 80}
		if a != "" {
			p.HostAddr = netip.MustParseAddr(a)
		}
		return named.Connection{Ports: []named.Port{p}}
	}
	must(t, ignore(tb.connect("web", "a", ports("192.0.2.9", 8080))))
	must(t, tb.disconnect("web", "a"))
	must(t, ignore(tb.connect("web", "a", ports("", 8080))))
	for _, at := range []string{"", "192.0.2.9"} {
		if _, err := tb.connect("web", "b", ports(at, 8081)); !errors.As(err, new(*named.PortTakenError)) {
			t.Errorf("at %q: %v, want that the port is taken", at, err)
		}
	}
}

// Names of a network in a VRF are served again soon after somebody has made the VRF anew.
func TestNamesInVRF(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	h, err := link.Handle(tb.host)
	must(t, err)
	defer h.Close()
	blue := tb.inVRF(h)
	tb.startKeeper()
	for _, c := range []string{"a", "b"} {
		_, err := tb.connect("web", c, named.Connection{})
		must(t, err)
	}
	gateway, a := netip.MustParseAddr("10.20.1.1"), tb.containers["a"]
	if len(resolve(a, gateway, "b.")) == 0 {
		t.Error("names are not served")
	}
	tb.check()
	// It has the bridge again: only the name server is elsewhere.
	bridge, err := h.LinkByName("cl-web")
	must(t, err)
	must(t, h.LinkDel(blue))
	blue.Index = 0
	must(t, errors.Join(h.LinkAdd(blue), h.LinkSetUp(blue), h.LinkSetMaster(bridge, blue)))
	tb.within(3*named.CheckInterval, "names are served again", func() bool { return len(resolve(a, gateway, "b.")) > 0 })
	tb.check()
}

// A link of a routed network that is made again is the host's way from its loopback addresses to
// published ports again.
func TestAttachedAgainRoutesLoopback(t *testing.T) {
	tb := newTestbed(t, "a")
	must(t, tb.create(named.NetworkSpec{Name: "web", Driver: named.Routed, Subnets: subnets(1)}))
	e, err := tb.connect("web", "a", named.Connection{})
	must(t, err)
	loopback := func() (on bool) {
		t.Helper()
		must(t, tb.onHost(func() error {
			files, err := filepath.Glob("/proc/sys/net/ipv4/conf/clr*/route_localnet")
			if err != nil || len(files) != 1 {
				return fmt.Errorf("devices of containers: %q, %v", files, err)
			}
			text, err := os.ReadFile(files[0])
			on = string(text) == "1\n"
			return err
		}))
		return on
	}
	if !loopback() {
		t.Error("not after connect")
	}
	l, err := link.Find(tb.containers["a"], e.Interface)
	must(t, err)
	must(t, l.Close())
	a, err := tb.store.Attachment(e.AttachmentID)
	must(t, err)
	k := named.NewKeeper(named.KeeperConfig{Config: tb.cfg, Log: t.Errorf})
	must(t, tb.onHost(func() error {
		if _, err := attach.Reattach(t.Context(), tb.cfg.Attach, a); err != nil {
			return err
		}
		k.Attached(t.Context(), a)
		return nil
	}))
	if !loopback() {
		t.Error("not after the link was made again")
	}
}
