package wiring_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// quality is what a link is asked to do to each packet, each way alike.
type quality struct {
	delay time.Duration
	loss  float64 // share
}

// qualities are the links of the comparison. The delays are the ends and the middle of
// the variant "delays".
var qualities = []quality{{time.Millisecond, 0}, {25 * time.Millisecond, 0.01}, {50 * time.Millisecond, 0.1}}

// TestRelayIsAsAsked sends datagrams over links that the relay makes, and over the same
// made by the kernel's netem where there is one. Each is held against what was asked for,
// and what crosses the relay against what crosses netem.
func TestRelayIsAsAsked(t *testing.T) {
	lab.Need(t)
	relay := cross(t, relayedLinks(t, qualities, 0))
	for i, q := range qualities {
		relay[i].isAsAsked(t, fmt.Sprintf("relay, %s and %g%%", q.delay, 100*q.loss), q)
	}
	t.Run("netem", func(t *testing.T) {
		kernel := cross(t, netemLinks(t, qualities, 0))
		for i, q := range qualities {
			what := fmt.Sprintf("netem, %s and %g%%", q.delay, 100*q.loss)
			kernel[i].isAsAsked(t, what, q)
			relay[i].agrees(t, what, kernel[i], q)
		}
	})
}

const (
	// bursts of datagrams cross each link, the next when the one before is back, whatever
	// an emulated processor takes for it. At a loss of 10 % one standard deviation is 8 of
	// the 80 that are lost.
	bursts     = 20
	crossBurst = 40
	crossings  = bursts * crossBurst
)

// crossed is what became of the datagrams over one link, there and there and back.
type crossed [2]struct {
	came    int
	took    []time.Duration // by the first of each burst, which meets an idle link
	ordered bool
}

// agreement is how much more than asked for, and than netem, half of the datagrams may take
// each way: 0.3 ms on a machine that does nothing else. Of an emulated processor, which
// starts three processes for each and stands still at times, the fastest tenth may take more.
func agreement() (quantile int, most time.Duration) {
	if emulated() {
		return 0, 10 * time.Millisecond
	}
	return 1, 2 * time.Millisecond
}

// isAsAsked: no datagram is early, as many as agreement says are on time, the share of q is
// lost within six standard deviations, and order is kept.
func (c crossed) isAsAsked(t *testing.T, what string, q quality) {
	t.Helper()
	quantile, most := agreement()
	for i, way := range c {
		name, asked := wayName(i), time.Duration(1+i)*q.delay
		t.Logf("%s, %s: %v (10th, 50th, 90th of 100); %d of %d came", what, name, quantiles(way.took), way.came, crossings)
		arrive := math.Pow(1-q.loss, float64(1+i))
		if mean := crossings * arrive; math.Abs(float64(way.came)-mean) > 6*math.Sqrt(mean*(1-arrive)) {
			t.Errorf("%s, %s: %d of %d came, want %.0f", what, name, way.came, crossings, mean)
		}
		if !way.ordered {
			t.Errorf("%s, %s: order was not kept", what, name)
		}
		if len(way.took) == 0 {
			t.Fatalf("%s, %s: nothing came", what, name)
		}
		if least := slices.Min(way.took); least < asked {
			t.Errorf("%s, %s: one took %s, want %s", what, name, least, asked)
		}
		if took := quantiles(way.took)[quantile]; took > asked+time.Duration(1+i)*most {
			t.Errorf("%s, %s: most took %s and more, want %s", what, name, took, asked)
		}
	}
}

// agrees: they take the same time, by agreement, and as many came, within six standard
// deviations of the difference.
func (c crossed) agrees(t *testing.T, what string, kernel crossed, q quality) {
	t.Helper()
	quantile, most := agreement()
	for i, way := range c {
		name := wayName(i)
		relay, netem := quantiles(way.took), quantiles(kernel[i].took)
		if (relay[quantile] - netem[quantile]).Abs() > time.Duration(1+i)*most {
			t.Errorf("%s, %s: the relay takes %v, netem %v", what, name, relay, netem)
		}
		arrive := math.Pow(1-q.loss, float64(1+i))
		if d := float64(way.came - kernel[i].came); math.Abs(d) > 6*math.Sqrt(2*crossings*arrive*(1-arrive)) {
			t.Errorf("%s, %s: %d came over the relay, %d over netem", what, name, way.came, kernel[i].came)
		}
	}
}

func wayName(i int) string { return []string{"one way", "round trip"}[i] }

// quantiles are the 10th, 50th and 90th of 100.
func quantiles(took []time.Duration) [3]time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	var q [3]time.Duration
	for i, percent := range []int{10, 50, 90} {
		q[i] = sorted[(len(sorted)-1)*percent/100].Round(10 * time.Microsecond)
	}
	return q
}

// crossAddr is the address of a side, 1 or 2, of link i.
func crossAddr(i, side int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(4*i + side)}), 30)
}

// newSides makes the two nodes.
func newSides(t *testing.T) (sides [2]*lab.Node) {
	t.Helper()
	for i, name := range []string{"left", "right"} {
		n, err := lab.NewNode(name)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		sides[i] = n
	}
	return sides
}

// addressed gives the links' devices their addresses.
func addressed(t *testing.T, sides [2]*lab.Node, links int) [2]*lab.Node {
	t.Helper()
	for i := range links {
		for side, n := range sides {
			must(t, n.Address(crossDevice(i), crossAddr(i, side+1)))
		}
	}
	return sides
}

func crossDevice(i int) string { return "l" + strconv.Itoa(i+1) }

// relayedLinks are links between two nodes that one relay makes, as wiring does. Without
// a rate they are as fast as they go.
func relayedLinks(t *testing.T, like []quality, rate int64) [2]*lab.Node {
	t.Helper()
	sides := newSides(t)
	var files []*os.File
	var delays, losses []string
	for i, q := range like {
		for _, n := range sides {
			tap, err := link.OpenTun(n.NS, link.TunSpec{Attrs: link.Attrs{Name: crossDevice(i)}, Mode: link.TunEthernet, VNetHdr: true})
			must(t, err)
			files = append(files, tap.Files()...)
			if rate > 0 {
				must(t, link.Shape(tap.Link(), link.Shaping{RateBitsPerSec: rate}))
			}
		}
		delays = append(delays, q.delay.String())
		losses = append(losses, strconv.FormatFloat(q.loss, 'g', -1, 64))
	}
	relay, err := sides[0].Start(lab.Command{Args: []string{lab.Self, "traffic", "relay", "--pairs", strconv.Itoa(len(like)),
		"--delay", strings.Join(delays, ","), "--loss", strings.Join(losses, ",")}, Extra: files, Stderr: os.Stderr})
	for _, f := range files {
		f.Close() // the relay has a copy
	}
	must(t, err)
	killedAfter(t, relay)
	return addressed(t, sides, len(like))
}

// killedAfter ends a process with the test.
func killedAfter(t *testing.T, p lab.Proc) {
	t.Cleanup(func() {
		p.Kill()
		_ = p.Wait() // it was killed
	})
}

// netemLinks are the same links made of cables and netem.
func netemLinks(t *testing.T, like []quality, rate int64) [2]*lab.Node {
	t.Helper()
	sides := newSides(t)
	parent := uint32(netlink.HANDLE_ROOT)
	if rate > 0 {
		parent = netlink.MakeHandle(1, 1) // the shaper's class
	}
	for i, q := range like {
		name := crossDevice(i)
		must(t, lab.Connect(lab.End{Node: sides[0], Name: name}, lab.End{Node: sides[1], Name: name}, lab.Cable{RateBitsPerSec: rate}))
		for _, n := range sides {
			netem(t, n, name, parent, q)
		}
	}
	return addressed(t, sides, len(like))
}

// netem makes what a device sends late and lossy, or skips the test where the kernel can't.
// The parent is the device itself or the class of a shaper there.
func netem(t *testing.T, n *lab.Node, device string, parent uint32, q quality) {
	t.Helper()
	h, err := link.Handle(n.NS)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(device)
	must(t, err)
	err = h.QdiscReplace(netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(10, 0), Parent: parent},
		netlink.NetemQdiscAttrs{Latency: uint32(q.delay.Microseconds()), Loss: float32(100 * q.loss), Limit: netemLimit}))
	if errors.Is(err, unix.ENOENT) {
		t.Skip("this kernel has no netem (CONFIG_NET_SCH_NETEM)")
	}
	must(t, err)
}

// netemLimit is how many packets wait in netem at most, those that are delayed and those
// that wait for a shaper: twice a burst, and as much as the shaper's own queue holds.
const netemLimit = 100

// cross sends datagrams over one link after the other, left to right and back.
func cross(t *testing.T, sides [2]*lab.Node) []crossed {
	t.Helper()
	all := make([]crossed, len(qualities))
	for i := range all {
		var err error
		if all[i], err = crossLink(sides, i); err != nil {
			t.Fatalf("link %d: %v", i, err)
		}
	}
	return all
}

// crossLink is cross for one link.
func crossLink(sides [2]*lab.Node, i int) (c crossed, err error) {
	var ends [2]*net.UDPConn
	for side, n := range sides {
		at := netip.AddrPortFrom(crossAddr(i, side+1).Addr(), 4000)
		if err := n.NS.Do(func() (err error) {
			ends[side], err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
			return err
		}); err != nil {
			return c, err
		}
		defer ends[side].Close()
	}
	to := ends[1].LocalAddr().(*net.UDPAddr).AddrPort()
	flushed, ignored := make(chan int, 1000), make(chan int, 1000)
	var arrivals [2]chan []arrival
	for side := range arrivals {
		arrivals[side] = make(chan []arrival, 1)
	}
	go func() { arrivals[0] <- watch(ends[1], true, ignored) }()
	go func() { arrivals[1] <- watch(ends[0], false, flushed) }()
	if err := flush(ends[0], to, 0, flushed); err != nil { // the neighbours know each other
		return c, err
	}
	var sent [crossings]time.Time
	for n := range crossings {
		sent[n] = time.Now()
		if _, err := ends[0].WriteToUDPAddrPort(numbered(n), to); err != nil {
			return c, fmt.Errorf("datagram %d: %w", n, err)
		}
		if n%crossBurst == crossBurst-1 {
			if err := flush(ends[0], to, 1+n/crossBurst, flushed); err != nil {
				return c, fmt.Errorf("after datagram %d: %w", n, err)
			}
		}
	}
	for way := range c {
		ends[1-way].Close()
		c[way].came, c[way].took, c[way].ordered = since(sent[:], <-arrivals[way])
	}
	return c, nil
}

func numbered(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// flush sends one of a number beyond crossings until it is back: since order is kept, so
// is all before it, or lost.
func flush(c *net.UDPConn, to netip.AddrPort, burst int, flushed <-chan int) error {
	for range 50 {
		if _, err := c.WriteToUDPAddrPort(numbered(crossings+burst), to); err != nil {
			return err
		}
		again := time.After(300 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case n := <-flushed:
				if n == crossings+burst {
					return nil
				}
			case <-again:
				waiting = false
			}
		}
	}
	return errors.New("nothing comes back")
}

// arrival is that of one datagram.
type arrival struct {
	number int
	at     time.Time
}

// watch notes arrivals, and sends them back if it is to, until the socket closes. Numbers
// beyond crossings are told at once, unless nobody listens.
func watch(c *net.UDPConn, echo bool, beyond chan<- int) (all []arrival) {
	buf := make([]byte, 4)
	for {
		_, from, err := c.ReadFromUDPAddrPort(buf)
		at := time.Now()
		if err != nil {
			return all
		}
		if echo {
			_, _ = c.WriteToUDPAddrPort(buf, from) // what does not go is lost
		}
		number := int(binary.BigEndian.Uint32(buf))
		if number < crossings {
			all = append(all, arrival{number, at})
			continue
		}
		select {
		case beyond <- number:
		default:
		}
	}
}

// since is how many came, how long the first of each burst took, and whether they came in
// order, each once.
func since(sent []time.Time, all []arrival) (came int, took []time.Duration, ordered bool) {
	before := -1
	ordered = true
	for _, a := range all {
		if a.number%crossBurst == 0 {
			took = append(took, a.at.Sub(sent[a.number]))
		}
		ordered = ordered && a.number > before
		before = a.number
	}
	return len(all), took, ordered
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
