package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cleat/netns"
	"cleat/network/bgp"
	"cleat/network/named"
	"cleat/overlay"
	"cleat/overlay/control"
	"cleat/overlay/registry"
)

// routing is this host's BGP.
type routing struct {
	speaker *bgp.Speaker // nil: the host has none
	kernel  *bgp.Kernel
	peers   []netip.Addr
	mark    string // file with the boot in which a speaker has written routes
	boot    string
	address netip.Addr            // of the host, that the sessions have
	had     map[string]netip.Addr // addresses of the other hosts, by their names
	gone    map[netip.Addr]bool   // addresses that hosts had
}

// newRouting returns what a host's settings ask for. It starts nothing.
func newRouting(dir, boot string, host *netns.NS, settings *overlay.Settings, log func(string, ...any)) (*routing, error) {
	r := &routing{kernel: &bgp.Kernel{NS: host}, mark: filepath.Join(dir, "bgp"), boot: boot, had: map[string]netip.Addr{}, gone: map[netip.Addr]bool{}}
	if settings == nil || settings.BGP == nil {
		return r, nil
	}
	r.address = settings.Address
	cfg := bgp.Config{RouterID: routerID(settings.Address), AS: settings.BGP.AS, Port: settings.BGP.Port, NextHop6: nextHop6(settings.Address), Sink: r.kernel, Log: log}
	for _, p := range settings.BGP.Peers {
		one := bgp.Peer{Address: p.Address, AS: p.AS, BFD: p.BFD, Multihop: p.Multihop, Hold: p.Hold, MaxPrefixes: p.MaxPrefixes, Default: p.Default}
		if p.Password != "" {
			text, err := os.ReadFile(p.Password)
			if err != nil {
				return nil, fmt.Errorf("read the password of BGP peer %s: %w", p.Address, err)
			}
			one.Password = strings.TrimRight(string(text), "\r\n")
		}
		cfg.Peers = append(cfg.Peers, one)
		r.peers = append(r.peers, p.Address)
	}
	last, err := os.ReadFile(r.mark)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read when BGP ran last: %w", err)
	}
	cfg.Restarting = string(last) == boot && boot != ""
	r.speaker, err = bgp.New(cfg)
	return r, err
}

// routerID returns the router id of a host with an address. Of an IPv6 address it is a hash.
func routerID(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a
	}
	h := fnv.New32a()
	h.Write(a.AsSlice())
	id := [4]byte(h.Sum(nil))
	id[0] |= 1 // not 0.0.0.0
	return netip.AddrFrom4(id)
}

// nextHop6 returns the global IPv6 address of the device that has an address; none if it has none.
func nextHop6(a netip.Addr) netip.Addr {
	if a.Is6() {
		return a
	}
	devices, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}
	}
	for _, d := range devices {
		addrs, err := d.Addrs()
		if err != nil {
			continue // it is gone
		}
		var has bool
		var global netip.Addr
		for _, one := range addrs {
			p, err := netip.ParsePrefix(one.String())
			if err != nil {
				continue
			}
			has = has || p.Addr().Unmap() == a
			if !global.IsValid() && p.Addr().Is6() && p.Addr().IsGlobalUnicast() {
				global = p.Addr()
			}
		}
		if has {
			return global
		}
	}
	return netip.Addr{}
}

// run has sessions until ctx ends. Without BGP it removes the routes that were learned when there was BGP.
func (r *routing) run(ctx context.Context) error {
	if r.speaker == nil {
		return errors.Join(r.kernel.Remove(), removeFile(r.mark))
	}
	if err := os.WriteFile(r.mark, []byte(r.boot), 0o600); err != nil {
		return fmt.Errorf("note that BGP runs: %w", err)
	}
	return r.speaker.Run(ctx)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// apply announces this host's blocks, and accepts those of others. own are the networks that this host has.
func (r *routing) apply(s overlay.State, own map[string]*named.Network) {
	if r.speaker == nil {
		return
	}
	if s.Self.Address != r.address {
		r.address = s.Self.Address
		r.speaker.Moved(nextHop6(r.address))
	}
	var announced []netip.Prefix
	f := bgp.Filter{Gone: r.leftBehind(s.Hosts)}
	for _, n := range s.Networks {
		for _, sub := range n.Subnets {
			f.Networks = append(f.Networks, sub.Prefix)
		}
		local := own[n.Name]
		if local == nil {
			continue
		}
		announced = append(announced, n.Own...)
		for _, blocks := range n.Remote {
			if s.Encrypted {
				break // routers don't encrypt
			}
			for _, p := range blocks {
				f.Blocks = append(f.Blocks, bgp.Block{Prefix: p, Source: sourceFor(local, p)})
			}
		}
	}
	r.speaker.SetFilter(f)
	r.speaker.Announce(announced)
}

// leftBehind returns the addresses that hosts had since this node started, and that no host has.
func (r *routing) leftBehind(hosts []registry.Host) []netip.Addr {
	for _, h := range hosts {
		if was := r.had[h.Name]; was.IsValid() && was != h.Address {
			r.gone[was] = true
		}
		r.had[h.Name] = h.Address
	}
	for _, h := range hosts {
		delete(r.gone, h.Address)
	}
	return slices.SortedFunc(maps.Keys(r.gone), netip.Addr.Compare)
}

// remotes returns the devices by which packets of other hosts' containers come in, apart from the VXLAN device.
func (r *routing) remotes(prefixes []netip.Prefix) (all []named.Remote, err error) {
	if r.speaker == nil {
		return nil, nil
	}
	devices, err := r.kernel.Devices(r.peers)
	for _, d := range devices {
		all = append(all, named.Remote{Device: d, Prefixes: slices.Clone(prefixes)})
	}
	return all, err
}

// Peers implements overlay.PeerLister.
func (d *dataplane) Peers() (all []control.Peer) {
	if d.routing.speaker == nil {
		return nil
	}
	for _, p := range d.routing.speaker.State() {
		all = append(all, control.Peer{Address: p.Address, AS: p.AS, Established: p.Established, Since: p.Since, Sent: p.Sent, Received: p.Received, BFD: p.BFD, Error: p.Error})
	}
	return all
}
