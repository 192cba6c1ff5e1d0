package usernet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/usernet/lan"
)

// ErrClosed is returned after the Stack has ended.
var ErrClosed = errors.New("user-mode network is not running")

// Stack moves bytes between a TUN device and sockets. New makes one, and Run must be
// called once. The other methods are safe for concurrent use and may be called before
// Run.
type Stack struct{ group *group }

// New checks the configuration and makes a Stack. It starts nothing, but detaches all
// queues except the first.
func New(cfg Config) (*Stack, error) {
	if cfg.TUN == nil {
		return nil, errors.New("no TUN device given")
	}
	if err := checkMTU(cfg.MTU, cfg.Guest6.IsValid()); err != nil {
		return nil, err
	}
	if !cfg.Guest4.IsValid() && !cfg.Guest6.IsValid() {
		return nil, errors.New("guest has neither an IPv4 nor an IPv6 address")
	}
	queues := append([]*os.File{cfg.TUN}, cfg.Queues...)
	if cfg.Ledger == nil {
		var err error
		if cfg.Ledger, err = cfg.Limits.NewLedger(); err != nil {
			return nil, err
		}
	}
	limits, err := cfg.Limits.complete(len(queues), cfg.Ledger.Usage().Limit.Descriptors)
	if err != nil {
		return nil, err
	}
	var capture capture
	if cfg.Pcap != nil {
		linkType := uint32(packet.LinkTypeRaw)
		if cfg.Ethernet != nil {
			linkType = packet.LinkTypeEthernet
		}
		if capture, err = newCapture(cfg.Pcap, linkType); err != nil {
			return nil, err
		}
	}
	gate, err := newGate(cfg.Gate, cfg.Ledger)
	if err != nil {
		return nil, err
	}
	g := &group{gate: gate, ledger: cfg.Ledger, pipes: newPipeBudget(), owner: map[ownerKey]*engine{}, ports: map[portKey]*portOwner{}}
	if cfg.Ethernet != nil {
		if g.lan, err = cfg.newLAN(); err != nil {
			g.gate.close()
			return nil, err
		}
		g.autoPrefix = g.lan.AutoPrefix()
	}
	s := &Stack{g}
	controls := readCongestionControls()
	for i, q := range queues {
		e, err := newEngine(g, cfg, q, limits)
		if err != nil {
			s.Close()
			return nil, err
		}
		e.dev.capture, e.controls = capture, controls
		// The queue of an old kernel, or of something other than a TUN device, can't be
		// detached.
		e.queueWanted.Store(i == 0 || sys.DetachQueue(e.dev.fd) != nil)
		g.engines = append(g.engines, e)
	}
	return s, nil
}

// newLAN makes the other stations of the guest's Ethernet.
func (c *Config) newLAN() (*lan.LAN, error) {
	if !c.Ethernet.Guest.Unicast() {
		return nil, fmt.Errorf("guest's MAC address %s: want that of one station", c.Ethernet.Guest)
	}
	own := c.Ethernet.LAN
	own.MTU, own.Gateway4, own.Gateway6 = c.MTU, c.Gateway4, c.Gateway6
	if own.Addr4.Addr() != c.Guest4 || own.Addr6.Addr() != c.Guest6 {
		return nil, fmt.Errorf("addresses %s and %s on the Ethernet: want the guest's, %s and %s", own.Addr4, own.Addr6, c.Guest4, c.Guest6)
	}
	return lan.New(own)
}

// complete replaces zero fields with their defaults. BufferBytes becomes the share of one
// engine.
func (l Limits) complete(engines, descriptors int) (Limits, error) {
	l.Flows = min(cmp.Or(l.Flows, 1<<16), max(descriptors, 1))
	l.BufferBytes = cmp.Or(l.BufferBytes, 64<<20)
	if l.BufferBytes < engines<<20 {
		return l, fmt.Errorf("packet memory of %d bytes: want at least 1 MiB for each of %d queues", l.BufferBytes, engines)
	}
	l.BufferBytes /= engines
	l.UDPIdle = cmp.Or(l.UDPIdle, 120*time.Second)
	l.UDPReply = cmp.Or(l.UDPReply, 30*time.Second)
	return l, nil
}

// Run moves bytes until ctx ends or the device is removed; then it returns nil. It
// returns an error if waiting for events fails. Run locks a thread for each queue, which
// keeps a Go processor while it is busy: GOMAXPROCS should leave one for other
// goroutines. Flows that are open when Run ends are reset.
func (s *Stack) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(s.group.engines))
	for i, e := range s.group.engines[1:] {
		wg.Go(func() {
			defer cancel()
			errs[i+1] = e.run(ctx)
		})
	}
	errs[0] = s.group.engines[0].run(ctx)
	cancel()
	wg.Wait()
	s.group.gate.close()
	return errors.Join(errs...)
}

// Close frees what New has made, for a Stack that was never run. After Run it does
// nothing.
func (s *Stack) Close() {
	for _, e := range s.group.engines {
		e.discard()
	}
	s.group.gate.close()
}

// Flows describes all open flows, in no particular order.
func (s *Stack) Flows() ([]FlowInfo, error) {
	var all []FlowInfo
	for _, e := range s.group.engines {
		if err := e.call(func() { all = e.udp.describe(e.tcp.describe(all)) }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Stats returns the counters. After Run they keep their last values.
func (s *Stack) Stats() Stats {
	var sum Stats
	for _, e := range s.group.engines {
		sum.add(e.counters())
	}
	return sum
}

func (s *Stats) add(o Stats) {
	sum, more := reflect.ValueOf(s).Elem(), reflect.ValueOf(o)
	for i := range sum.NumField() {
		switch field := sum.Field(i); field.Kind() {
		case reflect.Uint64:
			field.SetUint(field.Uint() + more.Field(i).Uint())
		case reflect.Int:
			field.SetInt(field.Int() + more.Field(i).Int())
		}
	}
	for reason, n := range o.Unspliced {
		if s.Unspliced == nil {
			s.Unspliced = map[string]uint64{}
		}
		s.Unspliced[reason] += n
	}
}
