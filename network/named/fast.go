package named

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/fastpath"
	"cleat/link"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	fastPause = 10 * time.Millisecond  // how long changes of devices are collected
	fastAgain = 100 * time.Millisecond // until another look: a new link is there before it is in the files
	fastCheck = 5 * time.Second        // between looks for programs of others
)

// liberal are settings with which the kernel takes TCP packets for their connection's, whatever their place in it: it does
// not see those that go the fast way. The second one is about the ends of connections.
var liberal = []string{"/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "/proc/sys/net/netfilter/nf_conntrack_tcp_ignore_invalid_rst"}

func setLiberal() error {
	for _, file := range liberal {
		if err := os.WriteFile(file, []byte("1"), 0); err != nil {
			return fmt.Errorf("make connection tracking accept packets of connections that it does not see in full: %w", err)
		}
	}
	return nil
}

// fastKeeper lets packets of containers go the fast way.
type fastKeeper struct {
	k        *Keeper
	reported string

	mu   sync.Mutex     // guards what follows, and is held while path is in use
	path *fastpath.Path // nil: not needed yet
}

// FastCounters returns the packets that went the fast way. It is safe for concurrent use.
func (k *Keeper) FastCounters() (fastpath.Counters, error) {
	k.fast.mu.Lock()
	defer k.fast.mu.Unlock()
	if k.fast.path == nil {
		return fastpath.Counters{}, nil
	}
	return k.fast.path.Counters()
}

// keepFast lets packets of containers go the fast way, until ctx ends.
func (k *Keeper) keepFast(ctx context.Context) {
	f := &k.fast
	defer f.close()
	changed := make(chan struct{}, 1)
	go f.watch(ctx, changed)
	next := fastCheck
	for ctx.Err() == nil {
		f.report(k.host.Do(f.sync))
		select {
		case <-ctx.Done():
		case <-time.After(next):
			next = fastCheck
		case <-changed:
			sleep(ctx, fastPause)
			next = fastAgain
		}
	}
}

// report logs an error once.
func (f *fastKeeper) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != f.reported && text != "" {
		f.k.log("packets go the kernel's way: %v", err)
	}
	f.reported = text
}

// close has all packets go the kernel's way again.
func (f *fastKeeper) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.end(); err != nil {
		f.k.log("fast path: %v", err)
	}
}

func (f *fastKeeper) end() error {
	if f.path == nil {
		return nil
	}
	err := f.path.Close()
	f.path = nil
	return err
}

// watch signals changes of the host's devices and their queueing disciplines.
func (f *fastKeeper) watch(ctx context.Context, changed chan<- struct{}) {
	var s *nl.NetlinkSocket
	err := f.k.host.Do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_TC)
		return err
	})
	if err != nil {
		f.k.log("packets of new containers go the fast way after %s: %v", fastCheck, fmt.Errorf("subscribe to changes of devices: %w", err))
		return
	}
	defer context.AfterFunc(ctx, s.Close)()
	for {
		if _, _, err := s.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// sync attaches the programs to the devices that exist now.
func (f *fastKeeper) sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	networks, err := f.networks()
	if err != nil {
		return err
	}
	if len(networks) == 0 {
		return f.end()
	}
	settings, devices, err := f.devices(networks)
	if err != nil {
		return err
	}
	if f.path == nil {
		if !slices.ContainsFunc(devices, func(d fastpath.Device) bool { return d.Role == fastpath.Container }) {
			return nil
		}
		if err := setLiberal(); err != nil {
			return err
		}
		if f.path, err = fastpath.New(); err != nil {
			return err
		}
	}
	return f.path.Sync(settings, devices)
}

// networks returns those whose packets may go the fast way.
func (f *fastKeeper) networks() ([]*Network, error) {
	all, err := f.k.store.Networks()
	return slices.DeleteFunc(all, func(n *Network) bool {
		use, _ := n.ChooseDatapath()
		return use != DatapathBPF
	}), err
}

// devices returns the devices by which packets of networks come in and leave.
func (f *fastKeeper) devices(networks []*Network) (s fastpath.Settings, devices []fastpath.Device, err error) {
	h, err := link.Handle(f.k.host)
	if err != nil {
		return s, nil, err
	}
	defer h.Close()
	all, err := link.Dump(h.LinkList)
	if err != nil {
		return s, nil, fmt.Errorf("list devices: %w", err)
	}
	shaped, classified, err := qdiscs(h)
	if err != nil {
		return s, nil, err
	}
	addressed, err := link.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return s, nil, fmt.Errorf("list addresses: %w", err)
	}
	ends, bridges, err := f.ends(networks)
	if err != nil {
		return s, nil, err
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range all {
		byIndex[l.Attrs().Index] = l
	}
	for _, l := range all {
		a := l.Attrs()
		if v, ok := l.(*netlink.Vxlan); ok && isRemote(networks, a.Name) {
			s.VNI, s.Port = v.VxlanId, uint16(v.Port)
		}
		master := byIndex[a.MasterIndex]
		switch {
		case classified[a.Index] || a.EncapType != "ether":
		case ends[a.Name] || master != nil && bridges[master.Attrs().Name]:
			// What has a queueing discipline must wait in it.
			if l.Type() == "veth" && !shaped[a.Index] {
				devices = append(devices, fastpath.Device{Index: a.Index, Role: fastpath.Container})
			}
		case isWire(l, master) && slices.ContainsFunc(addressed, func(one netlink.Addr) bool { return one.LinkIndex == a.Index && isGlobal(one) }):
			devices = append(devices, fastpath.Device{Index: a.Index, Role: fastpath.Wire})
		}
	}
	return s, devices, nil
}

// isRemote reports whether packets of other hosts' containers come by a device.
func isRemote(networks []*Network, device string) bool {
	return slices.ContainsFunc(networks, func(n *Network) bool {
		return n.Span != nil && slices.ContainsFunc(n.Span.Remotes, func(r Remote) bool { return r.Device == device })
	})
}

// ends returns the names of the host's ends of containers' links on networks without a bridge, and of the bridges of the
// others.
func (f *fastKeeper) ends(networks []*Network) (ends, bridges map[string]bool, err error) {
	ends, bridges = map[string]bool{}, map[string]bool{}
	for _, n := range networks {
		if n.Driver != Routed {
			bridges[n.device()] = true
			continue
		}
		ids, err := f.k.store.endpointIDs(n.Name)
		if err != nil {
			return nil, nil, err
		}
		for _, id := range ids {
			ends[n.peerOf(id)] = true
		}
	}
	return ends, bridges, nil
}

// isWire reports whether a device leads to other hosts, if it has an address.
func isWire(l, master netlink.Link) bool {
	switch l.Type() {
	case "bridge", "vxlan", "geneve", "dummy", "ifb":
		return false
	}
	return l.Attrs().Flags&net.FlagUp != 0 && (master == nil || master.Type() == "vrf") && !strings.HasPrefix(l.Attrs().Name, peerPrefix)
}

func isGlobal(a netlink.Addr) bool { return a.Scope == unix.RT_SCOPE_UNIVERSE }

// qdiscs returns the devices whose packets wait in a queueing discipline, and those with programs or filters of others,
// which packets that go the fast way would not meet.
func qdiscs(h *netlink.Handle) (shaped, classified map[int]bool, err error) {
	all, err := link.Dump(func() ([]netlink.Qdisc, error) { return h.QdiscList(nil) })
	if err != nil {
		return nil, nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	shaped, classified = map[int]bool{}, map[int]bool{}
	for _, q := range all {
		switch q.Type() {
		case "noqueue":
		case "clsact", "ingress":
			classified[q.Attrs().LinkIndex] = true
		default:
			shaped[q.Attrs().LinkIndex] = true
		}
	}
	return shaped, classified, nil
}
