package bgp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/bgp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// speakerArg makes this program a speaker. A process can have one, in its own namespace.
const speakerArg = "speaker"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == speakerArg {
		if err := runSpeaker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	lab.SetParallel(10) // tests mostly wait
	os.Exit(lab.RunTests(m))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }
func addr(text string) netip.Addr     { return netip.MustParseAddr(text) }

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, prefix(t))
	}
	return all
}

// order is what a test sends a speaker; the speaker answers each with its state.
type order struct {
	Config   *settings // first
	Announce []netip.Prefix
	Filter   *bgp.Filter
	Moved    netip.Addr // its address of IPv6 then
}

// settings are what a bgp.Config has, for JSON.
type settings struct {
	RouterID   netip.Addr
	AS         uint32
	Peers      []bgp.Peer
	Port       uint16
	NextHop6   netip.Addr
	Restarting bool
}

// runSpeaker is a speaker in a process of its own.
func runSpeaker() error {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	var s *bgp.Speaker
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		if o.Config != nil {
			c := bgp.Config{RouterID: o.Config.RouterID, AS: o.Config.AS, Peers: o.Config.Peers, Port: o.Config.Port,
				NextHop6: o.Config.NextHop6, Restarting: o.Config.Restarting, Sink: &bgp.Kernel{NS: ns}}
			c.Log = func(format string, args ...any) {
				fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format("05.000")}, args...)...)
			}
			if s, err = bgp.New(c); err != nil {
				return err
			}
			s.CheckEvery(500 * time.Millisecond)
			go func() {
				if err := s.Run(ctx); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				ended <- nil
			}()
		}
		if o.Filter != nil {
			s.SetFilter(*o.Filter)
		}
		if o.Moved.IsValid() {
			s.Moved(o.Moved)
		}
		if o.Announce != nil {
			s.Announce(o.Announce)
		}
		if err := out.Encode(s.State()); err != nil {
			return err
		}
	}
	stop()
	return <-ended
}

// speaker is one of ours, on a node.
type speaker struct {
	t    *testing.T
	node *lab.Node
	proc lab.Proc
	mu   sync.Mutex
	in   *os.File
	out  *bufio.Reader
	log  string
}

func newSpeaker(t *testing.T, node *lab.Node, o order) *speaker {
	t.Helper()
	inRead, inWrite, err := os.Pipe()
	must(t, err)
	outRead, outWrite, err := os.Pipe()
	must(t, err)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	s := &speaker{t: t, node: node, in: inWrite, out: bufio.NewReader(outRead), log: log.Name()}
	s.proc, err = node.Start(lab.Command{Args: []string{lab.Self, speakerArg}, Stdin: inRead, Stdout: outWrite, Stderr: log})
	must(t, err)
	for _, f := range []*os.File{inRead, outWrite, log} {
		f.Close()
	}
	t.Cleanup(func() {
		s.kill()
		outRead.Close()
		if t.Failed() {
			text, _ := os.ReadFile(s.log)
			t.Logf("speaker on %s:\n%s", node, text)
		}
	})
	s.do(o)
	return s
}

// send passes an order to the speaker, which answers it.
func (s *speaker) send(o order) {
	s.t.Helper()
	text, err := json.Marshal(o)
	must(s.t, err)
	_, err = s.in.Write(append(text, '\n'))
	must(s.t, err)
}

// do is send, and returns the answer.
func (s *speaker) do(o order) (state []bgp.PeerState) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(o)
	line, err := s.out.ReadBytes('\n')
	must(s.t, err)
	must(s.t, json.Unmarshal(line, &state))
	return state
}

func (s *speaker) announce(texts ...string) {
	s.t.Helper()
	s.do(order{Announce: append([]netip.Prefix{}, prefixes(texts...)...)})
}

// kill ends the process as kill -9 does.
func (s *speaker) kill() {
	s.proc.Kill()
	s.proc.Wait()
	s.in.Close()
}

// stop ends the process as an upgrade does.
func (s *speaker) stop() {
	s.t.Helper()
	must(s.t, s.in.Close())
	must(s.t, s.proc.Wait())
}

// established waits until all sessions are.
func (s *speaker) established() {
	s.t.Helper()
	eventually(s.t, func() error {
		for _, p := range s.do(order{}) {
			if !p.Established {
				return fmt.Errorf("session with %s is not established: %s", p.Address, p.Error)
			}
		}
		return nil
	})
}

// eventually waits until check succeeds.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// routes returns the routes of a node's main table of a protocol, e.g. "10.64.1.0/26 via 192.0.2.1".
func routes(t *testing.T, node *lab.Node, protocol int) []string {
	t.Helper()
	h, err := link.Handle(node.NS)
	must(t, err)
	defer h.Close()
	var all []string
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: netlink.RouteProtocol(protocol)}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		must(t, err)
		for _, r := range list {
			all = append(all, bgp.RouteText(r, family))
		}
	}
	return all
}

// wantRoutes waits until a node has certain routes of a protocol, and no others.
func wantRoutes(t *testing.T, node *lab.Node, protocol int, want ...string) {
	t.Helper()
	eventually(t, func() error { return sameRoutes(routes(t, node, protocol), want) })
}

func sameRoutes(got, want []string) error {
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		return fmt.Errorf("routes are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	return nil
}

// segment makes nodes on a switch: the i-th has 192.0.2.i/24 and 2001:db8::i/64.
func segment(t *testing.T, names ...string) (all []*lab.Node) {
	t.Helper()
	lab.Need(t)
	sw, err := lab.NewSwitch("sw", 1500)
	must(t, err)
	for i, name := range names {
		n, err := lab.NewNode(name)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		_, err = sw.Plug(lab.End{Node: n, Name: "eth0"}, 0)
		must(t, err)
		must(t, n.Address("eth0", prefix(fmt.Sprintf("192.0.2.%d/24", i+1)), prefix(fmt.Sprintf("2001:db8::%d/64", i+1))))
		must(t, n.Sysctl("net/ipv4/ip_forward", "1"))
		must(t, n.Sysctl("net/ipv6/conf/all/forwarding", "1"))
		all = append(all, n)
	}
	t.Cleanup(func() { sw.Node.Close() })
	return all
}

// stream sends datagrams from one node to an address of another, which returns them, until stop is called. stop
// returns how many were sent and how many came back.
func stream(t *testing.T, from, to *lab.Node, source, target netip.Addr) (stop func() (sent, received int64)) {
	t.Helper()
	var server, client *net.UDPConn
	must(t, to.NS.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(target, 7)))
		return err
	}))
	must(t, from.NS.Do(func() (err error) {
		client, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)))
		return err
	}))
	var sent, received atomic.Int64
	var running sync.WaitGroup
	running.Go(func() {
		b := make([]byte, 64)
		for {
			n, at, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDPAddrPort(b[:n], at)
		}
	})
	running.Go(func() {
		b := make([]byte, 64)
		for {
			if _, err := client.Read(b); errors.Is(err, net.ErrClosed) {
				return
			} else if err == nil {
				received.Add(1)
			}
		}
	})
	ended := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				_, _ = client.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(target, 7)) // a loss is seen by the count
				sent.Add(1)
			}
		}
	})
	stopOnce := sync.OnceFunc(func() {
		close(ended)
		sending.Wait()
		for last := time.Now(); sent.Load() != received.Load() && time.Since(last) < time.Second; time.Sleep(time.Millisecond) {
		}
		server.Close()
		client.Close()
		running.Wait()
	})
	t.Cleanup(stopOnce)
	return func() (int64, int64) { stopOnce(); return sent.Load(), received.Load() }
}
