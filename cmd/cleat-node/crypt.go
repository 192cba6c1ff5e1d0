package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"cleat/link"
	"cleat/network/named"
	"cleat/network/span"
	"cleat/overlay"
	"cleat/overlay/registry"
)

// Times of WireGuard.
const (
	// leaveOff is how long a host accepts packets that are not encrypted after the cluster has begun to encrypt, if a host
	// does not say that it sends no more of them.
	leaveOff = time.Minute
	// linger is how long packets may be on their way.
	linger = time.Second
	// lookAgain is the time after which hosts are looked at again that have no session with the latest key.
	lookAgain = 300 * time.Millisecond
)

// crypt is what a dataplane remembers of encryption. Only Apply uses it, but for sending.
type crypt struct {
	known, on bool        // the last State, if known, was that of a cluster that encrypts
	since     time.Time   // when it began to; zero: before this process
	all       time.Time   // since when all other hosts encrypt everything; zero: some don't
	strict    bool        // packets are refused that are not encrypted
	again     *time.Timer // of the next look at hosts that are behind; nil: there was none yet
	sending   int         // see overlay.Encrypter; guarded by dataplane.mu
	only      bool        // see overlay.Encrypter; guarded by dataplane.mu
}

// Can implements overlay.Encrypter.
func (d *dataplane) Can(way string) error {
	switch way {
	case overlay.WireGuardWay:
		return link.Probe("wireguard")
	case overlay.Geneve:
		return link.Probe("geneve")
	}
	return nil
}

// Sending implements overlay.Encrypter.
func (d *dataplane) Sending() (generation int, only bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.crypt.sending, d.crypt.only
}

// refusesPlain returns whether packets are refused that are not encrypted: from soon after the last host has ceased to
// send them.
func (d *dataplane) refusesPlain(s overlay.State) bool {
	c := &d.crypt
	lookIn := func(t time.Duration) { time.AfterFunc(t, func() { signal(d.stale) }) }
	if s.Encrypted && c.known && !c.on {
		c.since = time.Now()
		lookIn(leaveOff)
	}
	c.known, c.on = true, s.Encrypted
	switch all := !slices.ContainsFunc(s.Hosts, func(h registry.Host) bool { return !h.WireGuard.Only }); {
	case !all:
		c.all = time.Time{}
	case c.all.IsZero():
		c.all = time.Now()
		lookIn(linger)
	}
	// A host that joins later encrypts from the beginning.
	c.strict = s.Encrypted && (c.strict || !c.all.IsZero() && time.Since(c.all) >= linger || time.Since(c.since) >= leaveOff)
	return c.strict
}

// wireGuardPort returns the first UDP port of a host's WireGuard: the port of its gate plus 1.
func wireGuardPort(h registry.Host) int { return int(h.Port) + 1 }

// wireGuard returns this host's part of WireGuard.
func wireGuard(s overlay.State) (w span.WireGuard, err error) {
	if s.WireGuard.Generation == 0 {
		return w, nil
	}
	w.Port, w.Slot = wireGuardPort(s.Self), registry.SlotOf(s.WireGuard.Generation)
	if last := w.Port + span.Slots - 1; last > 65535 {
		return span.WireGuard{}, fmt.Errorf("WireGuard needs UDP ports %d and %d, after the port of this host: choose a smaller --port", w.Port, last)
	}
	for slot, k := range s.WireGuard.Keys {
		w.Keys[slot] = link.WireGuardKey(k)
	}
	return w, nil
}

// publicKeys returns a host's keys, by slot.
func publicKeys(h registry.Host) (keys [span.Slots]link.WireGuardPublic, err error) {
	if h.WireGuard.First == 0 {
		return keys, nil
	}
	for i, text := range h.WireGuard.Keys {
		b, err := base64.StdEncoding.DecodeString(text)
		if err == nil && len(b) != len(keys[0]) {
			err = fmt.Errorf("%d bytes, want %d", len(b), len(keys[0]))
		}
		if err != nil {
			return [span.Slots]link.WireGuardPublic{}, fmt.Errorf("read the keys of host %s: %w", h.Name, err)
		}
		copy(keys[registry.SlotOf(h.WireGuard.First+i)][:], b)
	}
	return keys, nil
}

// lacks returns why this host can't use the way between it and another one.
func (d *dataplane) lacks(s overlay.State, way string, other registry.Host) error {
	if err := d.Can(way); err != nil {
		return err
	}
	if way != overlay.WireGuardWay {
		return nil
	}
	switch {
	case s.WireGuard.Generation == 0:
		return errors.New("this host has no key of WireGuard yet")
	case other.WireGuard.Problem != "":
		return fmt.Errorf("host %s can't encrypt: %s", other.Name, other.WireGuard.Problem)
	case other.WireGuard.First == 0:
		return fmt.Errorf("host %s has no key of WireGuard yet", other.Name)
	}
	_, err := publicKeys(other)
	return err
}

// tunnels returns the ways by which packets may come encapsulated, other than in VXLAN, by host and prefix.
func (w ways) tunnels(n overlay.NetworkState) []named.Remote {
	var all []named.Remote
	for _, device := range []string{span.GeneveDevice, span.WireGuardDevices[0], span.WireGuardDevices[1]} {
		r := named.Remote{Device: device, Only: true}
		for host, blocks := range n.Remote {
			one := w.accepts[host]
			byGeneve := one.err == nil && one.choice == overlay.Geneve
			if device == span.GeneveDevice && byGeneve || device != span.GeneveDevice && one.keys {
				r.Prefixes = append(r.Prefixes, blocks...)
			}
		}
		all = append(all, r)
	}
	return all
}

// sealed returns the addresses of other hosts from and to which nothing passes unencrypted.
func (w ways) sealed(n overlay.NetworkState) []netip.Prefix {
	if !w.strict {
		return nil
	}
	return blocksOfOthers(n)
}

// behind looks after the hosts that are reached with an older key than the latest, or not at all.
func (d *dataplane) behind(s overlay.State, c span.Config, paths map[string]overlay.Path, failed bool) error {
	sending := 0
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.crypt.sending, d.crypt.only = sending, s.Encrypted && !failed
	}()
	if c.WireGuard.Port == 0 || failed {
		return nil
	}
	got, err := span.ReadSessions(d.host, c)
	if err != nil {
		return err
	}
	if len(got.Behind) == 0 && !(s.Pending && len(got.Silent) > 0) {
		sending = s.WireGuard.Generation
	} else {
		if d.crypt.again == nil {
			d.crypt.again = time.AfterFunc(lookAgain, func() { signal(d.stale) })
		}
		d.crypt.again.Reset(lookAgain) // one timer, so that changes meanwhile don't add looks
	}
	for _, h := range s.Hosts {
		if p := paths[h.Name]; slices.Contains(got.Silent, h.Address) && (s.Pending || p.By == overlay.WireGuardWay) {
			p.Why += fmt.Sprintf("; no answer by WireGuard yet, UDP ports %d and %d", wireGuardPort(h), wireGuardPort(h)+1)
			paths[h.Name] = p
		}
	}
	return nil
}

// by returns how packets travel to a host that are not plain.
func (w way) by() span.By {
	switch w.choice {
	case overlay.Geneve:
		return span.ByGeneve
	case overlay.WireGuardWay:
		return span.ByWireGuard
	}
	return span.ByVXLAN
}

// mayBePlain reports whether packets from and to a block may have no encapsulation.
func (w way) mayBePlain(block netip.Prefix) bool {
	return w.err == nil && w.onLink && (w.choice == overlay.Auto || w.choice == overlay.Routes) && span.CanBePlain(block, w.addr)
}

// mayBeVXLAN reports whether packets may be in VXLAN.
func (w way) mayBeVXLAN() bool {
	return w.err == nil && (w.choice == overlay.Auto || w.choice == overlay.VXLAN)
}
