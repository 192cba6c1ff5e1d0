package wiring_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/bench/multipath"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"
	"cleat/traffic"

	"github.com/vishvananda/netlink"
)

// relaySlow does what `cleat traffic relay` does, with links that delay or lose packets.
func relaySlow(ctx context.Context, args []string) error {
	flags := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		flags[args[i]] = args[i+1]
	}
	pairs, err := strconv.Atoi(flags["--pairs"])
	delays, losses := strings.Split(flags["--delay"], ","), strings.Split(flags["--loss"], ",")
	if err != nil || len(delays) != pairs || len(losses) != pairs {
		return fmt.Errorf("relay %q: %d delays and %d losses", args, len(delays), len(losses))
	}
	links := make([]traffic.SlowLink, pairs)
	for i := range links {
		links[i].A, links[i].B = 3+2*i, 4+2*i
		if links[i].Delay, err = time.ParseDuration(delays[i]); err != nil {
			return err
		}
		if links[i].Loss, err = strconv.ParseFloat(losses[i], 64); err != nil {
			return err
		}
	}
	_, err = traffic.RelaySlow(ctx, links, 1)
	return err
}

// linked builds a network over links of 100 Mbit/s.
func linked(t *testing.T, spec wiring.Spec) *wiring.Network {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	spec.RateBitsPerSec = 100e6
	w, err := wiring.Build(ctx, wiring.Config{Spec: spec, Pairs: 1, Scratch: scratch(t)})
	skipLacking(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return w
}

// ends returns the two hosts.
func ends(w *wiring.Network) (left, right *lab.Node) {
	return w.Pairs[0].ClientNode, w.Pairs[0].Server.(*lab.Node)
}

// linkAt is the right host's address on link n, from 1.
func linkAt(n int) string { return fmt.Sprintf("198.18.%d.2", 99+n) }

// datagrams sends count datagrams over link n. It returns how many arrive before none
// does for 300 ms.
func datagrams(t *testing.T, w *wiring.Network, n, count int) (arrived int) {
	t.Helper()
	left, right := ends(w)
	var in net.PacketConn
	if err := right.NS.Do(func() (err error) { in, err = net.ListenPacket("udp", linkAt(n)+":0"); return err }); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out net.Conn
	if err := left.NS.Do(func() (err error) { out, err = net.Dial("udp", in.LocalAddr().String()); return err }); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	go func() {
		for i := range count {
			if _, err := out.Write([]byte("ahoy")); err != nil {
				t.Errorf("send datagram %d over link %d: %v", i, n, err)
				return
			}
			if i%10 == 0 {
				time.Sleep(time.Millisecond) // the device's queue is short
			}
		}
	}()
	buf := make([]byte, 16)
	for {
		in.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, _, err := in.ReadFrom(buf); err != nil {
			return arrived
		}
		arrived++
	}
}

// received returns how many bytes a device has received.
func received(t *testing.T, n *lab.Node, device string) uint64 {
	t.Helper()
	var text []byte
	if err := n.NS.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/dev"); return err }); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, rest, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == device {
			bytes, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return bytes
		}
	}
	t.Fatalf("%s has no %s", n, device)
	return 0
}

// transfer runs a TCP test over the network's pair.
func transfer(t *testing.T, w *wiring.Network, mptcp bool, d time.Duration) traffic.Result {
	t.Helper()
	stop := serveTraffic(t, w.Pairs[0])
	defer stop()
	left, _ := ends(w)
	var r traffic.Result
	err := left.NS.Do(func() (err error) {
		r, err = traffic.Run(t.Context(), traffic.Config{Work: traffic.TCP, Address: w.Pairs[0].Dial.String(), Duration: d, MPTCP: mptcp})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestLinksInUse checks that "single" uses one link of several, and MPTCP all.
func TestLinksInUse(t *testing.T) {
	lab.Need(t)
	for network, all := range map[string]bool{"single": false, "mptcp": true} {
		for outer, ipv6 := range map[string]bool{"ipv4": false, "ipv6": true} {
			t.Run(network+"/"+outer, func(t *testing.T) {
				w := linked(t, wiring.Spec{Network: network, Links: 3, IPv6: ipv6})
				_, right := ends(w)
				if r := transfer(t, w, network == "mptcp", 500*time.Millisecond); r.BytesReceived == 0 || r.MPTCPFallback {
					t.Errorf("%+v", r)
				}
				for n := 1; n <= 3; n++ {
					got := received(t, right, fmt.Sprintf("l%d", n))
					if used := got > 1<<20; used != (all || n == 1) {
						t.Errorf("link %d carried %d bytes", n, got)
					}
				}
			})
		}
	}
}

// TestMPTCPLimit checks that the notes tell how many links the kernel uses.
func TestMPTCPLimit(t *testing.T) {
	lab.Need(t)
	w := linked(t, wiring.Spec{Network: "mptcp", Links: 12})
	if len(w.Notes) == 0 || !strings.Contains(w.Notes[len(w.Notes)-1], "of the 12 links") {
		t.Errorf("notes %q", w.Notes)
	}
	_, right := ends(w)
	transfer(t, w, true, 2*time.Second)
	used := 0
	for n := 1; n <= 12; n++ {
		if received(t, right, fmt.Sprintf("l%d", n)) > 1<<18 {
			used++
		}
	}
	if want := fmt.Sprintf("uses %d of", used); !strings.Contains(w.Notes[len(w.Notes)-1], want) {
		t.Errorf("%d links carried data, but the notes are %q", used, w.Notes)
	}
}

// TestRates compares the shapers with the rates of the variant "rates".
func TestRates(t *testing.T) {
	lab.Need(t)
	left, right := ends(linked(t, wiring.Spec{Network: "single", Links: 5, Variant: "rates"}))
	for _, n := range []*lab.Node{left, right} {
		h, err := link.Handle(n.NS)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		for i, want := range []uint64{100e6, 100e6, 50e6, 20e6, 100e6} {
			l, err := h.LinkByName(fmt.Sprintf("l%d", i+1))
			if err != nil {
				t.Fatal(err)
			}
			all, err := h.QdiscList(l)
			if err != nil || len(all) != 1 {
				t.Fatalf("%v, %v", all, err)
			}
			if tbf, ok := all[0].(*netlink.Tbf); !ok || tbf.Rate*8 != want {
				t.Errorf("link %d on %s: %v, want %d bit/s", i+1, n, all[0], want)
			}
		}
	}
}

// TestDelays checks that a connection over each link takes at least twice its delay.
func TestDelays(t *testing.T) {
	lab.Need(t)
	w := linked(t, wiring.Spec{Network: "mptcp", Links: 3, Variant: "delays"})
	left, right := ends(w)
	for n, oneWay := range map[int]time.Duration{1: time.Millisecond, 2: 25500 * time.Microsecond, 3: 50 * time.Millisecond} {
		var l net.Listener
		if err := right.NS.Do(func() (err error) { l, err = net.Listen("tcp", linkAt(n)+":0"); return err }); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var took time.Duration
		err := left.NS.Do(func() error {
			began := time.Now()
			c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
			took = time.Since(began)
			if err == nil {
				c.Close()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		// The neighbour's address is known, so this takes one round trip only.
		if took < 2*oneWay || took > 2*oneWay+2*oneWay+time.Second {
			t.Errorf("link %d: connected in %s, want %s", n, took, 2*oneWay)
		}
	}
	if r := transfer(t, w, true, 500*time.Millisecond); r.BytesReceived < 1<<20 {
		t.Errorf("%d bytes arrived", r.BytesReceived)
	}
}

// TestLoss checks that half of 1,000 datagrams arrive over the lossy link, within six
// standard deviations, and all over the others.
func TestLoss(t *testing.T) {
	lab.Need(t)
	w := linked(t, wiring.Spec{Network: "mptcp", Links: 3, Variant: "loss", LossShare: 0.5})
	const sent = 1000
	for n := 1; n <= 3; n++ {
		got := datagrams(t, w, n, sent)
		if n < 3 && got != sent {
			t.Errorf("%d of %d datagrams arrived over link %d", got, sent, n)
		}
		if n == 3 && (got < 400 || got > 600) { // σ is 16
			t.Errorf("%d of %d datagrams arrived over the link that loses half", got, sent)
		}
	}
}

// TestBlackHole checks that the last link drops everything from half-time on, that
// senders see no error, and that the links stay up.
func TestBlackHole(t *testing.T) {
	lab.Need(t)
	w := linked(t, wiring.Spec{Network: "mptcp", Links: 2, Variant: "blackhole"})
	if got := datagrams(t, w, 2, 20); got != 20 {
		t.Errorf("before: %d of 20 datagrams arrived", got)
	}
	if err := w.Play(t.Context(), time.Now(), 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := datagrams(t, w, 2, 20); got != 0 {
		t.Errorf("after: %d of 20 datagrams arrived", got)
	}
	if got := datagrams(t, w, 1, 20); got != 20 {
		t.Errorf("over the other link %d of 20 datagrams arrived", got)
	}
	left, right := ends(w)
	for _, n := range []*lab.Node{left, right} {
		if !carrier(t, n, "l2") {
			t.Errorf("the link is down on %s", n)
		}
	}
}

// carrier reports whether a link is up and has a carrier.
func carrier(t *testing.T, n *lab.Node, device string) bool {
	t.Helper()
	h, err := link.Handle(n.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	l, err := h.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().OperState == netlink.OperUp
}

// TestFlap checks that the last link goes down for the second half of a second, and comes
// back with its addresses.
func TestFlap(t *testing.T) {
	lab.Need(t)
	w := linked(t, wiring.Spec{Network: "mptcp", Links: 2, Variant: "flap"})
	_, right := ends(w)
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- w.Play(t.Context(), began, time.Second) }()
	down := false
	for err := error(errPlaying); errors.Is(err, errPlaying); {
		select {
		case err = <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Millisecond):
		}
		down = down || !carrier(t, right, "l2")
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("Play returned after %s", took)
	}
	if !down {
		t.Error("the link was never down")
	}
	left, _ := ends(w)
	for until := time.Now().Add(10 * time.Second); !carrier(t, left, "l2") || !carrier(t, right, "l2"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) { // the kernel may take a second to report it
			t.Fatal("the link did not come back")
		}
	}
	if got := datagrams(t, w, 2, 20); got != 20 {
		t.Errorf("afterwards %d of 20 datagrams arrived", got)
	}
	if got := datagrams(t, w, 1, 20); got != 20 {
		t.Errorf("over the other link %d of 20 datagrams arrived", got)
	}
}

var errPlaying = errors.New("no return from Play")

func TestInvalidLinks(t *testing.T) {
	lab.Need(t)
	for name, spec := range map[string]wiring.Spec{
		"links":   {Network: "single", Links: 65},
		"variant": {Network: "single", Links: 2, Variant: "plane"},
		"loss":    {Network: "single", Links: 2, Variant: "loss", LossShare: 2},
	} {
		w, err := wiring.Build(t.Context(), wiring.Config{Spec: spec, Pairs: 1, Scratch: scratch(t)})
		if err == nil {
			w.Close()
		}
		if !isParamError(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTunnel runs `cleat tunnel up` at both ends.
func TestTunnel(t *testing.T) {
	lab.Need(t)
	if !needRun(t) {
		t.Skip("no Go toolchain to build the program")
	}
	if out, _ := exec.Command(os.Getenv(programEnv), "tunnel", "up", "/nonexistent.yaml").CombinedOutput(); strings.Contains(string(out), "unknown command") {
		t.Skipf("cleat has no `cleat tunnel`: %s", strings.TrimSpace(string(out)))
	}
	for name, spec := range map[string]wiring.Spec{
		"plain": {}, "IPv6": {IPv6: true}, "encrypted": {Encrypted: true}, "duplicate": {Scheduler: "duplicate"},
		"delays": {Variant: multipath.Delays}, "loss": {Variant: multipath.Loss},
	} {
		t.Run(name, func(t *testing.T) {
			spec.Network, spec.Links = "tunnel", 3
			w := linked(t, spec)
			left, right := ends(w)
			if got, want := innerMTU(t, left), tunnelMTU(spec); got != want {
				t.Errorf("the device's MTU is %d bytes, package multipath assumes %d", got, want)
			}
			length := 500 * time.Millisecond
			if spec.Variant == multipath.Delays { // the stream takes many round trips to fill the longest link
				length = 2 * time.Second
			}
			if r := transfer(t, w, false, length); r.BytesReceived < 1<<20 {
				t.Errorf("%d bytes arrived", r.BytesReceived)
			}
			for n := 1; n <= 3; n++ {
				if got := received(t, right, fmt.Sprintf("l%d", n)); got < 1<<18 {
					t.Errorf("link %d carried %d bytes", n, got)
				}
			}
		})
	}
}

// tunnelMTU returns the tunnel's MTU as package multipath assumes it: its ideal assumes
// packets that fill the links' MTU.
func tunnelMTU(spec wiring.Spec) int {
	oneLink := multipath.Spec{Links: 1, RateBitsPerSec: 1514}
	share, _ := oneLink.Ideal(multipath.Load{Network: "tunnel", IPv6: spec.IPv6, Encrypted: spec.Encrypted},
		multipath.Interval{Whole: time.Second, To: time.Second})
	return int(math.Round(share)) + 52 // IPv4 and TCP with timestamps
}

func innerMTU(t *testing.T, n *lab.Node) int {
	t.Helper()
	l, err := link.Find(n.NS, "mp0")
	if err != nil {
		t.Fatal(err)
	}
	mtu, err := l.MTU()
	if err != nil {
		t.Fatal(err)
	}
	return mtu
}

// TestLossSeedIsKnown checks that a network knows the seed of the relay that loses packets.
func TestLossSeedIsKnown(t *testing.T) {
	lab.Need(t)
	w := linked(t, wiring.Spec{Network: "single", Links: 1, Variant: multipath.Loss})
	relays, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range relays {
		line, _ := os.ReadFile(name)
		if strings.Contains(string(line), "\x00relay\x00") && strings.Contains(string(line), fmt.Sprintf("\x00--seed\x00%d\x00", w.LossSeed)) {
			return
		}
	}
	t.Errorf("no relay has the seed %d", w.LossSeed)
}
