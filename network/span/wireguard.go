package span

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"cleat/link"
	"cleat/netns"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Slots is how many WireGuard devices a host has. Each has a key of its own, so one key can be replaced while packets
// take the other device.
const Slots = 2

// WireGuardDevices are the names of the WireGuard devices, by slot.
var WireGuardDevices = [Slots]string{"cleat-wg0", "cleat-wg1"}

// keepalive is the time between packets of two hosts that have nothing to say. A session is valid for 180 s, and is
// renewed by a packet after 120 s (wireguard.com/papers/wireguard.pdf, section 6.1). With packets at least this often
// there is a session in each slot, so that neither the first packet to another host nor the first one with another key
// waits for a handshake.
const keepalive = 25 * time.Second

// sessionValid is how long a session is valid after its handshake (REJECT_AFTER_TIME in drivers/net/wireguard).
const sessionValid = 180 * time.Second

// WireGuard is this host's part of WireGuard.
type WireGuard struct {
	// Keys are by slot. A zero key means that the slot has no device.
	Keys [Slots]link.WireGuardKey
	Port int // UDP, of the first slot; the second one has the next port
	// Slot is where packets go, unless another host has no session there, but in the other slot.
	Slot int
}

// port returns the UDP port of a slot.
func port(first, slot int) int { return first + slot }

// wireGuardMTU returns the MTU of WireGuard devices.
func (c Config) wireGuardMTU() int { return c.MTU - OverheadFor(ByWireGuard, c.Local) }

// session is what a slot has for another host.
type session struct{ fresh, configured bool }

// wireGuardDevice makes the device of a slot, unless it exists as wanted.
func (s *syncer) wireGuardDevice(ns *netns.NS, slot int) error {
	name := WireGuardDevices[slot]
	old, err := s.find(name, kindWireGuard)
	if err != nil {
		return err
	}
	key, at := s.config.WireGuard.Keys[slot], port(s.config.WireGuard.Port, slot)
	if old == nil {
		spec := link.WireGuardSpec{PrivateKey: key, ListenPort: at}
		spec.Name, spec.MTU = name, s.config.wireGuardMTU()
		l, err := link.Create(ns, spec, link.Target{NS: ns})
		if err != nil {
			return err
		}
		s.note("device %s", name)
		s.slots[slot] = l.Index()
		return errors.Join(s.loosen(name, l.Index()), l.Up())
	}
	s.slots[slot] = old.Attrs().Index
	if err := s.adjust(old, s.config.wireGuardMTU()); err != nil {
		return err
	}
	d, err := s.wg.Device(name)
	if err != nil {
		return fmt.Errorf("read device %s: %w", name, err)
	}
	var c wgtypes.Config
	if d.PrivateKey != wgtypes.Key(key) {
		c.PrivateKey, c.ReplacePeers = (*wgtypes.Key)(&key), true // peers remember sessions that are worth nothing now
		s.note("key of %s", name)
	}
	if d.ListenPort != at {
		c.ListenPort = &at
		s.note("port of %s: %d", name, at)
	}
	if c.PrivateKey == nil && c.ListenPort == nil {
		return nil
	}
	if err := s.wg.ConfigureDevice(name, c); err != nil {
		return fmt.Errorf("configure device %s: %w", name, err)
	}
	return nil
}

// peers makes the peers of a slot: the hosts that have a key there. It sets their sessions.
func (s *syncer) peers(slot int) error {
	name := WireGuardDevices[slot]
	d, err := s.wg.Device(name)
	if err != nil {
		return fmt.Errorf("read device %s: %w", name, err)
	}
	wanted := map[wgtypes.Key]Host{}
	for _, h := range s.config.Hosts {
		key := wgtypes.Key(h.Keys[slot])
		if _, taken := wanted[key]; key != (wgtypes.Key{}) && !taken {
			wanted[key] = h
		}
	}
	var c wgtypes.Config
	has := map[wgtypes.Key]wgtypes.Peer{}
	for _, p := range d.Peers {
		if _, ok := wanted[p.PublicKey]; ok {
			has[p.PublicKey] = p
			continue
		}
		c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
		s.note("peer of %s removed", name)
	}
	for _, h := range s.config.Hosts { // in their order
		key := wgtypes.Key(h.Keys[slot])
		if w, ok := wanted[key]; !ok || w.Address != h.Address {
			continue
		}
		old, ok := has[key]
		s.sessions[slot][h.Address] = session{configured: true, fresh: ok && !old.LastHandshakeTime.IsZero() && time.Since(old.LastHandshakeTime) < sessionValid}
		if p, differs := peerFor(h, slot, old); differs {
			c.Peers = append(c.Peers, p)
			s.note("peer %s of %s", h.Address, name)
		}
	}
	if len(c.Peers) == 0 {
		return nil
	}
	if err := s.wg.ConfigureDevice(name, c); err != nil {
		return fmt.Errorf("configure the peers of %s: %w", name, err)
	}
	return nil
}

// peerFor returns a host as a peer, and whether the kernel's differs. The kernel takes an address from the peer that
// had it, and removes none: addresses that nobody has are removed by replacing all, between which packets get lost.
func peerFor(h Host, slot int, old wgtypes.Peer) (p wgtypes.PeerConfig, differs bool) {
	at := netip.AddrPortFrom(h.Address, uint16(port(h.Port, slot)))
	every := keepalive
	p = wgtypes.PeerConfig{PublicKey: wgtypes.Key(h.Keys[slot])}
	if old.Endpoint == nil || unmapped(old.Endpoint.AddrPort()) != at {
		p.Endpoint, differs = net.UDPAddrFromAddrPort(at), true
	}
	if old.PersistentKeepaliveInterval != every {
		p.PersistentKeepaliveInterval, differs = &every, true
	}
	has := map[netip.Prefix]bool{}
	for _, n := range old.AllowedIPs {
		a, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		has[netip.PrefixFrom(a.Unmap(), bits)] = true
	}
	var all, missing []net.IPNet
	for _, b := range h.Blocks {
		n := netOf(b.Prefix.Masked())
		all = append(all, n)
		if !has[b.Prefix.Masked()] {
			missing = append(missing, n)
		}
		delete(has, b.Prefix.Masked())
	}
	if len(has) > 0 {
		p.ReplaceAllowedIPs, missing = true, all
	}
	p.AllowedIPs = missing
	return p, differs || len(missing) > 0 || p.ReplaceAllowedIPs
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func netOf(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// slot returns the slot by which packets go to a host: the preferred one, unless only the other one has a session. ok
// is false if there is none.
func (s *syncer) slot(h Host) (slot int, ok bool) {
	preferred := s.config.WireGuard.Slot
	first, second := s.sessions[preferred][h.Address], s.sessions[1-preferred][h.Address]
	switch {
	case first.fresh, first.configured && !second.fresh:
		return preferred, true
	case second.configured:
		return 1 - preferred, true
	}
	return 0, false
}

// wireGuards makes the devices and peers of all slots that have a key.
func (s *syncer) wireGuards(ns *netns.NS) error {
	s.sessions = [Slots]map[netip.Addr]session{{}, {}}
	if s.config.WireGuard.Keys == ([Slots]link.WireGuardKey{}) {
		return nil
	}
	err := ns.Do(func() (err error) {
		s.wg, err = wgctrl.New()
		return err
	})
	if err != nil {
		for _, name := range WireGuardDevices {
			s.stay(name, ByWireGuard)
		}
		return fmt.Errorf("open wireguard control: %w", err)
	}
	defer s.wg.Close()
	var errs []error
	for slot, key := range s.config.WireGuard.Keys {
		if key == (link.WireGuardKey{}) {
			continue
		}
		err := s.wireGuardDevice(ns, slot)
		if err == nil {
			err = s.peers(slot)
		}
		if err != nil {
			s.stay(WireGuardDevices[slot], ByWireGuard)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Sessions are other hosts, by what WireGuard has of them.
type Sessions struct {
	Behind []netip.Addr // reached by a slot that is not the preferred one
	Silent []netip.Addr // with keys, and without a session
}

// ReadSessions returns the hosts of a Config that are behind or silent.
func ReadSessions(ns *netns.NS, c Config) (all Sessions, err error) {
	h, err := link.Handle(ns)
	if err != nil {
		return all, err
	}
	defer h.Close()
	s := &syncer{h: h, config: c}
	var fresh [Slots]map[wgtypes.Key]bool
	err = ns.Do(func() (err error) {
		s.wg, err = wgctrl.New()
		return err
	})
	if err != nil {
		return all, fmt.Errorf("open wireguard control: %w", err)
	}
	defer s.wg.Close()
	for slot, name := range WireGuardDevices {
		fresh[slot] = map[wgtypes.Key]bool{}
		if l, err := s.find(name, kindWireGuard); err != nil || l == nil {
			continue
		}
		d, err := s.wg.Device(name)
		if err != nil {
			return all, fmt.Errorf("read device %s: %w", name, err)
		}
		for _, p := range d.Peers {
			fresh[slot][p.PublicKey] = !p.LastHandshakeTime.IsZero() && time.Since(p.LastHandshakeTime) < sessionValid
		}
	}
	by, err := s.devicesOfRoutes()
	if err != nil {
		return all, err
	}
	for _, one := range c.Hosts {
		if one.Keys != ([Slots]link.WireGuardPublic{}) && !fresh[0][wgtypes.Key(one.Keys[0])] && !fresh[1][wgtypes.Key(one.Keys[1])] {
			all.Silent = append(all.Silent, one.Address)
		}
		if one.By != ByWireGuard {
			continue
		}
		wanted := WireGuardDevices[c.WireGuard.Slot]
		if slices.ContainsFunc(one.Blocks, func(b Block) bool { return by[b.Prefix.Masked()] != wanted }) {
			all.Behind = append(all.Behind, one.Address)
		}
	}
	return all, nil
}

// devicesOfRoutes returns the devices of the routes to blocks.
func (s *syncer) devicesOfRoutes() (map[netip.Prefix]string, error) {
	links, err := link.Dump(s.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	by := map[netip.Prefix]string{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		all, err := s.ownRoutes(family)
		if err != nil && !absent(err) {
			return nil, err
		}
		for _, r := range all {
			if have := parse(r); !have.unreachable {
				by[have.to] = names[have.device]
			}
		}
	}
	return by, nil
}

const kindWireGuard = "wireguard"
