package wiring

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"cleat/internal/linkzoo"
	"cleat/lab"
	"cleat/link"
)

// zooQueue is the device's own queue, in packets. The relay reads it every 100 µs; a burst
// must fit meanwhile, also if the relay runs late.
const zooQueue = 4000

// zooLinks makes each link of a case two TAP devices without offloads, so that each packet
// crosses by itself, and starts one relay for all of them. The relay makes the case itself.
func (nw *Network) zooLinks(h linkedHosts, c linkzoo.Case) error {
	middle, err := nw.node("middle")
	if err != nil {
		return err
	}
	var tuns []*link.Tun
	for i := range c.Links {
		for _, n := range []*lab.Node{h.left, h.right} {
			t, err := nw.openTunAs(n, link.TunSpec{Attrs: link.Attrs{Name: linkName(i), MTU: nw.cfg.MTU, TxQueueLen: zooQueue}, Mode: link.TunEthernet})
			if err != nil {
				return err
			}
			tuns = append(tuns, t)
		}
	}
	if nw.relay, err = newZooRelay(); err != nil {
		return err
	}
	defer nw.relay.closeChild()
	nw.cleanups = append(nw.cleanups, nw.relay.close)
	nw.play = nw.relay.play
	args := []string{lab.Self, "traffic", "relay", "--zoo", strconv.FormatUint(h.spec.Zoo, 10), "--zoo-link", strconv.Itoa(h.spec.ZooLink)}
	if rate := h.spec.ZooCapBitsPerSec; rate > 0 {
		args = append(args, "--zoo-cap", strconv.FormatFloat(rate, 'f', 0, 64))
	}
	if c.SlewPPM != 0 {
		nw.Notes = append(nw.Notes, "the clocks of both ends are one: the case's clock does not slew")
	}
	return nw.start(middle, lab.Command{Args: args, Stdin: nw.relay.childIn, Stdout: nw.relay.childOut, Extra: filesOf(tuns)})
}

// addCompetitors adds a pair over each link that a competitor uses.
func (nw *Network) addCompetitors(h linkedHosts, c linkzoo.Case) {
	for _, i := range c.Competitors() {
		at := endpoint(h.linkAddr(i, 2), maxPairs+i)
		nw.Cross = append(nw.Cross, Pair{Client: h.left, ClientNode: h.left, Device: linkName(i), Server: h.right, Listen: at, Dial: at})
	}
}

// zooRelay controls a relay of shaped links.
type zooRelay struct {
	in, out, childIn, childOut *os.File
	lines                      *bufio.Reader

	mu      sync.Mutex
	reports [][]byte
}

func newZooRelay() (*zooRelay, error) {
	var r zooRelay
	var err error
	if r.childIn, r.in, err = os.Pipe(); err == nil {
		r.out, r.childOut, err = os.Pipe()
	}
	if err != nil {
		r.closeChild()
		return nil, errors.Join(fmt.Errorf("make a pipe: %w", err), r.close())
	}
	r.lines = bufio.NewReader(r.out)
	return &r, nil
}

// closeChild closes the ends that the relay has inherited.
func (r *zooRelay) closeChild() {
	r.childIn.Close()
	r.childOut.Close()
}

func (r *zooRelay) close() error {
	r.in.Close()
	r.out.Close() // harmless for nil files, and nothing was written to any
	return nil
}

const (
	// settledAfter is when a case counts as settled, for what must hold from then on.
	settledAfter = 5 * time.Second
	// reportTimeout bounds the wait for the relay's report: its thread has a high priority.
	reportTimeout = 5 * time.Second
)

// play begins the case, and asks for the relay's report once the case has settled and at the
// end of the measurement.
func (r *zooRelay) play(ctx context.Context, from time.Time, _ time.Duration) error {
	if _, err := fmt.Fprintln(r.in, from.UnixNano()); err != nil {
		return fmt.Errorf("begin the case: %w", err)
	}
	if sleepUntil(ctx, from.Add(settledAfter)) {
		if err := r.report(); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return r.report()
}

func (r *zooRelay) report() error {
	if _, err := fmt.Fprintln(r.in, "report"); err != nil {
		return fmt.Errorf("ask the relay for its report: %w", err)
	}
	if err := r.out.SetReadDeadline(time.Now().Add(reportTimeout)); err != nil {
		return fmt.Errorf("limit the wait for the relay: %w", err)
	}
	line, err := r.lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the relay's report: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, line)
	return nil
}

// RelayReports returns the reports of the relay of shaped links, as JSON (traffic.ShapedReport):
// of the time when the measurement had settled, if it took that long, and of its end. It
// returns none for other networks.
func (nw *Network) RelayReports() [][]byte {
	if nw.relay == nil {
		return nil
	}
	nw.relay.mu.Lock()
	defer nw.relay.mu.Unlock()
	return nw.relay.reports
}
