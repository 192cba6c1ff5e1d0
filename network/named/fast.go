package named

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"cleat/fastpath"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	fastPause = 10 * time.Millisecond  // how long changes of devices are collected
	fastAgain = 100 * time.Millisecond // until another look: a new link is there before it is in the files
	fastCheck = 5 * time.Second        // between looks for programs of others, and for other hosts
)

// fastKeeper lets packets of containers go the fast way.
type fastKeeper struct {
	k        *Keeper
	reported string

	mu      sync.Mutex     // guards what follows, and is held while path is in use
	path    *fastpath.Path // nil: not needed yet
	refused error          // that it can't be had
	changed map[int]bool   // devices whose queueing disciplines or filters have changed; nil: all may have
	cleared bool           // programs of an earlier keeper have been looked for
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
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() { f.watch(ctx, changed) })
	next := fastCheck
	for ctx.Err() == nil {
		f.report(k.host.Do(f.sync))
		select {
		case <-ctx.Done():
		case <-time.After(next):
			if next == fastCheck {
				f.touch(nil)
			}
			next = fastCheck
		case <-changed:
			sleep(ctx, fastPause)
			next = fastAgain
		}
	}
	watching.Wait()
	f.report(k.host.Do(f.end))
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
		messages, _, err := s.Receive()
		if errors.Is(err, unix.ENOBUFS) { // some are lost
			messages, err = nil, nil
		}
		if err != nil {
			return
		}
		f.touch(messages)
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// touch notes the devices whose queueing disciplines or filters have changed (struct tcmsg,
// include/uapi/linux/rtnetlink.h); without messages, that all may have.
func (f *fastKeeper) touch(messages []syscall.NetlinkMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(messages) == 0 {
		f.changed = nil
	}
	if f.changed == nil {
		return
	}
	const header = 8 // bytes with the device's index
	for _, m := range messages {
		switch m.Header.Type {
		case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
			if len(m.Data) >= header {
				f.changed[int(int32(nl.NativeEndian().Uint32(m.Data[4:])))] = true
			}
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
	if err := f.clear(networks); err != nil {
		return err
	}
	if len(networks) == 0 {
		return errors.Join(f.detach(), restoreTracking(f.k.store))
	}
	if f.refused != nil {
		return nil
	}
	settings, devices, _, err := f.devices(networks)
	if err != nil {
		return err
	}
	if f.path == nil {
		if !slices.ContainsFunc(devices, func(d fastpath.Device) bool { return d.Role == fastpath.Container }) {
			return nil
		}
		if err := f.load(networks); f.path == nil {
			return err
		}
	}
	changed := f.changed
	f.changed = map[int]bool{}
	return f.path.Sync(settings, devices, changed)
}

// clear removes programs of an earlier keeper from devices that need none, once.
func (f *fastKeeper) clear(networks []*Network) error {
	if f.cleared {
		return nil
	}
	_, _, leftover, err := f.devices(networks)
	if err != nil {
		return err
	}
	for _, index := range leftover {
		if err := fastpath.Clear(index); err != nil {
			return err
		}
	}
	f.cleared = true
	return nil
}

// load loads the programs. That they can't be had is an error if somebody has asked for them.
func (f *fastKeeper) load(networks []*Network) (err error) {
	f.path, err = fastpath.New()
	if unsupported := (*fastpath.UnsupportedError)(nil); errors.As(err, &unsupported) {
		f.refused = err
		if !slices.ContainsFunc(networks, func(n *Network) bool { return n.Datapath == DatapathBPF }) {
			err = nil
		}
	}
	if err != nil || f.path == nil {
		return err
	}
	if err := relaxTracking(f.k.store); err != nil {
		return errors.Join(err, f.detach())
	}
	return nil
}

// detach has all packets go the kernel's way again.
func (f *fastKeeper) detach() error {
	if f.path == nil {
		return nil
	}
	err := f.path.Close()
	f.path = nil
	return err
}

// end does the same when the keeper ends, which may be because the last network is gone.
func (f *fastKeeper) end() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.detach()
	if networks, listErr := f.networks(); listErr == nil && len(networks) == 0 {
		err = errors.Join(err, restoreTracking(f.k.store))
	}
	return err
}

// networks returns those whose packets may go the fast way.
func (f *fastKeeper) networks() ([]*Network, error) {
	all, err := f.k.store.Networks()
	return slices.DeleteFunc(all, func(n *Network) bool { return n.Datapath == DatapathNft || !n.OnHost() }), err
}
