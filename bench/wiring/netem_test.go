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

// impairment is what a link does to each packet, in either direction.
type impairment struct {
	delay time.Duration
	loss  float64 // share
}

// impairments are the links of the comparison. Their delays are the ends and the middle
// of the variant "delays".
var impairments = []impairment{{time.Millisecond, 0}, {25 * time.Millisecond, 0.01}, {50 * time.Millisecond, 0.1}}

// TestRelayMatchesNetem sends datagrams over links made by the relay, and over the same
// links made by the kernel's netem where there is one. Each link must do what it was
// asked to, and the relay the same as netem.
func TestRelayMatchesNetem(t *testing.T) {
	lab.Need(t)
	relay := measureLinks(t, relayedLinks(t, impairments, 0))
	for i, q := range impairments {
		relay[i].check(t, fmt.Sprintf("relay, %s and %g%%", q.delay, 100*q.loss), q)
	}
	t.Run("netem", func(t *testing.T) {
		kernel := measureLinks(t, netemLinks(t, impairments, 0))
		for i, q := range impairments {
			what := fmt.Sprintf("netem, %s and %g%%", q.delay, 100*q.loss)
			kernel[i].check(t, what, q)
			relay[i].compare(t, what, kernel[i], q)
		}
	})
}

const (
	// Datagrams cross each link in bursts. The next burst follows when the one before has
	// returned, however long an emulated processor takes for that. At a loss of 10 %,
	// where 80 datagrams are lost, one standard deviation is 8.
	burstCount    = 20
	burstSize     = 40
	datagramCount = burstCount * burstSize
)

// linkResult is the result of one link, for one way and for the round trip.
type linkResult [2]struct {
	arrived int
	took    []time.Duration // of the first datagram of each burst, which meets an idle link
	ordered bool
}

// tolerance returns how much longer than asked, and than by netem, a datagram may take
// each way, and to which of the quantiles that applies. On an idle machine half of the
// datagrams are within 0.3 ms. An emulated processor starts three processes for each
// datagram and stalls at times, so only its fastest tenth counts.
func tolerance() (quantile int, slack time.Duration) {
	if emulated() {
		return 0, 10 * time.Millisecond
	}
	return 1, 2 * time.Millisecond
}

// check reports datagrams that are early, late by more than tolerance, or out of order,
// and a loss that is not within six standard deviations.
func (c linkResult) check(t *testing.T, what string, q impairment) {
	t.Helper()
	quantile, slack := tolerance()
	for i, way := range c {
		name, want := wayName(i), time.Duration(1+i)*q.delay
		t.Logf("%s, %s: %v (10th, 50th, 90th of 100); %d of %d arrived", what, name, quantiles(way.took), way.arrived, datagramCount)
		arrive := math.Pow(1-q.loss, float64(1+i))
		if mean := datagramCount * arrive; math.Abs(float64(way.arrived)-mean) > 6*math.Sqrt(mean*(1-arrive)) {
			t.Errorf("%s, %s: %d of %d arrived, want %.0f", what, name, way.arrived, datagramCount, mean)
		}
		if !way.ordered {
			t.Errorf("%s, %s: order was not kept", what, name)
		}
		if len(way.took) == 0 {
			t.Fatalf("%s, %s: nothing arrived", what, name)
		}
		if first := slices.Min(way.took); first < want {
			t.Errorf("%s, %s: a datagram took %s, less than %s", what, name, first, want)
		}
		if took := quantiles(way.took)[quantile]; took > want+time.Duration(1+i)*slack {
			t.Errorf("%s, %s: quantiles[%d] is %s, want about %s", what, name, quantile, took, want)
		}
	}
}

// compare reports a difference from netem in the time taken, by tolerance, or in the
// number of arrivals, by six standard deviations of the difference.
func (c linkResult) compare(t *testing.T, what string, kernel linkResult, q impairment) {
	t.Helper()
	quantile, slack := tolerance()
	for i, way := range c {
		name := wayName(i)
		relay, netem := quantiles(way.took), quantiles(kernel[i].took)
		if (relay[quantile] - netem[quantile]).Abs() > time.Duration(1+i)*slack {
			t.Errorf("%s, %s: the relay takes %v, netem %v", what, name, relay, netem)
		}
		arrive := math.Pow(1-q.loss, float64(1+i))
		if d := float64(way.arrived - kernel[i].arrived); math.Abs(d) > 6*math.Sqrt(2*datagramCount*arrive*(1-arrive)) {
			t.Errorf("%s, %s: %d arrived over the relay, %d over netem", what, name, way.arrived, kernel[i].arrived)
		}
	}
}

func wayName(i int) string { return []string{"one way", "round trip"}[i] }

// quantiles returns the 10th, 50th and 90th percentile.
func quantiles(took []time.Duration) [3]time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	var q [3]time.Duration
	for i, percent := range []int{10, 50, 90} {
		q[i] = sorted[(len(sorted)-1)*percent/100].Round(10 * time.Microsecond)
	}
	return q
}

// sideAddr is the address of link i on a side, 1 or 2.
func sideAddr(i, side int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(4*i + side)}), 30)
}

func newTwoNodes(t *testing.T) (sides [2]*lab.Node) {
	t.Helper()
	for i, name := range []string{"left", "right"} {
		n, err := lab.NewNode(name)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		sides[i] = n
	}
	return sides
}

// setAddresses gives the links' devices their addresses.
func setAddresses(t *testing.T, sides [2]*lab.Node, links int) [2]*lab.Node {
	t.Helper()
	for i := range links {
		for side, n := range sides {
			must(t, n.Address(sideDevice(i), sideAddr(i, side+1)))
		}
	}
	return sides
}

func sideDevice(i int) string { return "l" + strconv.Itoa(i+1) }

// relayedLinks makes links between two nodes by one relay, as package wiring does. Rate 0
// leaves them unshaped.
func relayedLinks(t *testing.T, each []impairment, rate int64) [2]*lab.Node {
	t.Helper()
	sides := newTwoNodes(t)
	var files []*os.File
	var delays, losses []string
	for i, q := range each {
		for _, n := range sides {
			tap, err := link.OpenTun(n.NS, link.TunSpec{Attrs: link.Attrs{Name: sideDevice(i)}, Mode: link.TunEthernet, VNetHdr: true})
			must(t, err)
			files = append(files, tap.Files()...)
			if rate > 0 {
				must(t, link.Shape(tap.Link(), link.Shaping{RateBitsPerSec: rate}))
			}
		}
		delays = append(delays, q.delay.String())
		losses = append(losses, strconv.FormatFloat(q.loss, 'g', -1, 64))
	}
	relay, err := sides[0].Start(lab.Command{Args: []string{lab.Self, "traffic", "relay", "--pairs", strconv.Itoa(len(each)),
		"--delay", strings.Join(delays, ","), "--loss", strings.Join(losses, ",")}, Extra: files, Stderr: os.Stderr})
	for _, f := range files {
		f.Close() // the relay's copies keep the devices
	}
	must(t, err)
	killAtCleanup(t, relay)
	return setAddresses(t, sides, len(each))
}

func killAtCleanup(t *testing.T, p lab.Proc) {
	t.Cleanup(func() {
		p.Kill()
		_ = p.Wait() // the error of a killed process means nothing
	})
}

// netemLinks makes the same links by cables and netem.
func netemLinks(t *testing.T, each []impairment, rate int64) [2]*lab.Node {
	t.Helper()
	sides := newTwoNodes(t)
	parent := uint32(netlink.HANDLE_ROOT)
	if rate > 0 {
		parent = netlink.MakeHandle(1, 1) // the shaper's class
	}
	for i, q := range each {
		name := sideDevice(i)
		must(t, lab.Connect(lab.End{Node: sides[0], Name: name}, lab.End{Node: sides[1], Name: name}, lab.Cable{RateBitsPerSec: rate}))
		for _, n := range sides {
			netem(t, n, name, parent, q)
		}
	}
	return setAddresses(t, sides, len(each))
}

// netem delays and loses packets that a device sends. It skips the test where the kernel
// has no netem. The parent is the device itself or a shaper's class on it.
func netem(t *testing.T, n *lab.Node, device string, parent uint32, q impairment) {
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

// netemLimit is how many packets wait in netem at most, delayed or held by a shaper: two
// bursts, and as much as the shaper's own queue holds.
const netemLimit = 100

// measureLinks sends datagrams over one link after the other, left to right and back.
func measureLinks(t *testing.T, sides [2]*lab.Node) []linkResult {
	t.Helper()
	all := make([]linkResult, len(impairments))
	for i := range all {
		var err error
		if all[i], err = measureLink(sides, i); err != nil {
			t.Fatalf("link %d: %v", i, err)
		}
	}
	return all
}

func measureLink(sides [2]*lab.Node, i int) (c linkResult, err error) {
	var ends [2]*net.UDPConn
	for side, n := range sides {
		at := netip.AddrPortFrom(sideAddr(i, side+1).Addr(), 4000)
		if err := n.NS.Do(func() (err error) {
			ends[side], err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
			return err
		}); err != nil {
			return c, err
		}
		defer ends[side].Close()
	}
	to := ends[1].LocalAddr().(*net.UDPAddr).AddrPort()
	returned, ignored := make(chan int, 1000), make(chan int, 1000)
	var arrivals [2]chan []arrival
	for side := range arrivals {
		arrivals[side] = make(chan []arrival, 1)
	}
	go func() { arrivals[0] <- receive(ends[1], true, ignored) }()
	go func() { arrivals[1] <- receive(ends[0], false, returned) }()
	if err := flush(ends[0], to, 0, returned); err != nil { // resolves the neighbours
		return c, err
	}
	var sent [datagramCount]time.Time
	for n := range datagramCount {
		sent[n] = time.Now()
		if _, err := ends[0].WriteToUDPAddrPort(numbered(n), to); err != nil {
			return c, fmt.Errorf("datagram %d: %w", n, err)
		}
		if n%burstSize == burstSize-1 {
			if err := flush(ends[0], to, 1+n/burstSize, returned); err != nil {
				return c, fmt.Errorf("after datagram %d: %w", n, err)
			}
		}
	}
	for way := range c {
		ends[1-way].Close()
		c[way].arrived, c[way].took, c[way].ordered = summarize(sent[:], <-arrivals[way])
	}
	return c, nil
}

func numbered(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// flush sends a datagram with a number beyond datagramCount until one returns. Since the
// links keep order, all datagrams before it have arrived or are lost.
func flush(c *net.UDPConn, to netip.AddrPort, burst int, returned <-chan int) error {
	for range 50 {
		if _, err := c.WriteToUDPAddrPort(numbered(datagramCount+burst), to); err != nil {
			return err
		}
		again := time.After(300 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case n := <-returned:
				if n == datagramCount+burst {
					return nil
				}
			case <-again:
				waiting = false
			}
		}
	}
	return errors.New("no datagram returns")
}

type arrival struct {
	number int
	at     time.Time
}

// receive records arrivals until the socket closes, and with echo sends the datagrams
// back. Numbers beyond datagramCount go to the channel instead, or are dropped if it is
// full.
func receive(c *net.UDPConn, echo bool, beyond chan<- int) (all []arrival) {
	buf := make([]byte, 4)
	for {
		_, from, err := c.ReadFromUDPAddrPort(buf)
		at := time.Now()
		if err != nil {
			return all
		}
		if echo {
			_, _ = c.WriteToUDPAddrPort(buf, from) // a datagram that can't be sent counts as lost
		}
		number := int(binary.BigEndian.Uint32(buf))
		if number < datagramCount {
			all = append(all, arrival{number, at})
			continue
		}
		select {
		case beyond <- number:
		default:
		}
	}
}

// summarize returns how many datagrams arrived, how long the first of each burst took,
// and whether they arrived in order, each once.
func summarize(sent []time.Time, all []arrival) (arrived int, took []time.Duration, ordered bool) {
	before := -1
	ordered = true
	for _, a := range all {
		if a.number%burstSize == 0 {
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
