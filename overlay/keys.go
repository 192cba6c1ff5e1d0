package overlay

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/internal/statedir"
	"cleat/overlay/control"
	"cleat/overlay/registry"
)

// Keys of WireGuard have generations, and the cluster is in one of them. A host has two keys: of the generation that
// the cluster is in, and of the next one, or, while the cluster changes, of the one before. Each is on a device of its
// own (State.WireGuard), and other hosts know both before they are used, so a change of the generation only moves
// routes from one device to the other. A host replaces the key of the last generation when no host sends with it any
// more. Any host that is alive may do what the cluster needs; the first one by name does.

const (
	// rotateEvery is how long the cluster is in a generation. A key exists for twice that time: whoever has stolen
	// one, but not the host's identity, can use it for two days at most.
	rotateEvery = 24 * time.Hour
	// rotateWithin is how long hosts that don't answer hold up the change of keys. After that the others go on, and
	// these hosts are reached again when they have heard of the others' keys.
	rotateWithin = 7 * 24 * time.Hour
	// linger is how long a host keeps the keys with which no host sends any more: for packets on their way.
	linger = time.Second
	// keysInterval is the time between looks whether keys have to be changed.
	keysInterval = 5 * time.Second
)

// Key is a private key of WireGuard.
type Key [32]byte

// WireGuard is this host's part of WireGuard. The zero value is none.
type WireGuard struct {
	Keys       [2]Key // by slot; see registry.SlotOf
	Generation int    // by whose slot packets go
}

// An Encrypter is a Dataplane that can use WireGuard and Geneve. Its methods are called at any time.
type Encrypter interface {
	// Can returns an error if this host's kernel lacks what a way needs.
	Can(way string) error
	// Sending returns the generation by whose slot packets have gone since the last Apply, or may go; 0 if there is none.
	// only reports that none go in another way.
	Sending() (generation int, only bool)
}

// Can returns an error if a dataplane lacks what a way needs.
func Can(d Dataplane, way string) error {
	if way != Geneve && way != WireGuardWay {
		return nil
	}
	if e, ok := d.(Encrypter); ok {
		return e.Can(way)
	}
	return fmt.Errorf("this host has no %s", way)
}

// ring is this host's private keys.
type ring struct {
	Version int    `json:"version"`
	First   int    `json:"first"` // generation of the first key; 0: none
	Keys    [2]Key `json:"keys"`  // of First, and of the next generation
}

const ringFile = "wireguard.json"

// MarshalText and UnmarshalText write a key in base64, as WireGuard does.
func (k Key) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, k[:]), nil
}

func (k *Key) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.DecodeString(string(text))
	if err == nil && len(b) != len(k) {
		err = fmt.Errorf("%d bytes, want %d", len(b), len(k))
	}
	if err != nil {
		return fmt.Errorf("read a key of WireGuard: %w", err)
	}
	copy(k[:], b)
	return nil
}

// public returns the public key in base64.
func (k Key) public() (string, error) {
	p, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return "", fmt.Errorf("read a key of WireGuard: %w", err)
	}
	return base64.StdEncoding.EncodeToString(p.PublicKey().Bytes()), nil
}

func newKey() (Key, error) {
	p, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("make a key of WireGuard: %w", err)
	}
	k := Key(p.Bytes())
	k[0], k[31] = k[0]&^7, k[31]&^128|64 // as the kernel changes it (RFC 7748 section 5)
	return k, nil
}

// advanced returns the ring for a cluster in a generation. alone reports whether no host sends with the keys before
// that generation any more.
func (r ring) advanced(generation int, alone bool) (ring, error) {
	var err error
	switch {
	case r.First == 0 || generation > r.First+1: // new, or away for long
		r = ring{Version: 1, First: generation}
		r.Keys[0], err = newKey()
		if err == nil {
			r.Keys[1], err = newKey()
		}
	case generation == r.First+1 && alone:
		r.First, r.Keys[0] = generation, r.Keys[1]
		r.Keys[1], err = newKey()
	}
	return r, err
}

// wireGuard returns the ring for the dataplane.
func (r ring) wireGuard(generation int) (w WireGuard) {
	if r.First == 0 {
		return w
	}
	w.Generation = min(max(generation, r.First), r.First+1)
	for i, k := range r.Keys {
		w.Keys[registry.SlotOf(r.First+i)] = k
	}
	return w
}

// record returns what other hosts know of the ring.
func (r ring) record(sending int) (w registry.WireGuard, err error) {
	if r.First == 0 {
		return w, nil
	}
	w.First, w.Sending = r.First, sending
	for i, k := range r.Keys {
		if w.Keys[i], err = k.public(); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (d dir) readRing() (r ring, err error) {
	text, err := os.ReadFile(d.path(ringFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read the host's keys of WireGuard: %w; without the file %s the host makes new ones", err, d.path(ringFile))
	}
	return r, nil
}

func (d dir) writeRing(r ring) error {
	if r.First == 0 {
		if err := os.Remove(d.path(ringFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return statedir.WriteSecret(d.path(ringFile), text)
}

// needsKeys reports whether hosts need keys of WireGuard: some reach each other by it, or are about to.
func (m *mirror) needsKeys() bool {
	if m.Cluster.Encryption != "" || m.Cluster.Dataplane == WireGuardWay {
		return true
	}
	for _, h := range m.Hosts {
		if h.Dataplane == WireGuardWay {
			return true
		}
	}
	return false
}

// generation returns the generation in which the cluster is.
func (m *mirror) generation() int {
	g := max(1, m.Cluster.Generation)
	for _, h := range m.Hosts {
		g = max(g, h.WireGuard.Sending) // a registry that was restored may have an older one
	}
	return g
}

// waits returns the hosts that a condition on their keys does not hold for. Those without keys don't count.
func (m *mirror) waits(now time.Time, holds func(registry.WireGuard) bool) (names []string) {
	if now.Sub(m.Cluster.Rotated) > rotateWithin {
		return nil
	}
	for name, h := range m.Hosts {
		if h.WireGuard.First != 0 && !holds(h.WireGuard) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// unprepared returns which hosts can't begin to encrypt now, and why, in words. One that is not alive would not hear of
// it, and go on without.
func (m *mirror) unprepared() string {
	var all []string
	for name, h := range m.Hosts {
		_, lives := m.alive[name]
		why := "has no key yet"
		switch {
		case !lives:
			why = "is not alive; start it, or remove it: cleat-node remove " + name
		case h.WireGuard.Problem != "":
			why = "can't encrypt: " + h.WireGuard.Problem
		case h.WireGuard.First != 0 && h.WireGuard.Sending == 0:
			why = "has no answer by WireGuard yet from all others"
		case h.WireGuard.First != 0:
			continue
		}
		all = append(all, "host "+name+" "+why)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// isFirst reports whether a host is the first one that is alive.
func (m *mirror) isFirst(host string) bool {
	for name := range m.alive {
		if _, known := m.Hosts[name]; known && name < host {
			return false
		}
	}
	return true
}

// governKeys makes, replaces and registers this host's keys. On the first host it also changes the cluster's
// generation, and begins to encrypt when all hosts can.
func (n *Node) governKeys(ctx context.Context) error {
	n.mu.Lock()
	self, known := n.mirror.Hosts[n.settings.Host]
	if !n.listed || !n.answers || !known || n.ring == (ring{}) && self.WireGuard == (registry.WireGuard{}) && !n.mirror.needsKeys() {
		n.mu.Unlock()
		return nil
	}
	m, old := n.mirror.copy(), n.ring
	for name, a := range n.mirror.alive {
		m.alive[name] = a
	}
	n.mu.Unlock()
	now, lacks := old, error(nil)
	if m.needsKeys() {
		generation := m.generation()
		alone := n.lingered(generation, len(m.waits(time.Now(), func(w registry.WireGuard) bool { return w.Sending >= generation })) == 0)
		if lacks = Can(n.cfg.Dataplane, WireGuardWay); lacks != nil {
			now = ring{}
		} else if now, lacks = old.advanced(generation, alone); lacks != nil {
			return lacks
		}
	} else {
		now = ring{}
	}
	if err := n.setRing(now, old); err != nil {
		return err
	}
	if err := n.registerKeys(ctx, now, self.WireGuard, lacks); err != nil {
		return err
	}
	if m.needsKeys() && m.isFirst(n.settings.Host) {
		if err := n.leadKeys(ctx, m); err != nil {
			return err
		}
	}
	return encryptionProblem(m, lacks)
}

// lingered reports whether all hosts have sent with a generation for a while. Only governKeys uses it.
func (n *Node) lingered(generation int, send bool) bool {
	switch {
	case !send:
		n.alone = alone{}
		return false
	case n.alone.generation != generation:
		n.alone = alone{generation, time.Now()}
		time.AfterFunc(linger, func() { signal(n.keys) })
	}
	return time.Since(n.alone.since) >= linger
}

// alone is since when all hosts send with a generation.
type alone struct {
	generation int
	since      time.Time
}

// encryptionProblem returns what keeps a cluster, or this host, from encrypting.
func encryptionProblem(m *mirror, lacks error) error {
	switch {
	case lacks != nil && m.Cluster.Encryption == registry.EncryptionOn:
		return fmt.Errorf("this host can't encrypt, so its containers reach no other host: %w", lacks)
	case m.Cluster.Encryption == registry.EncryptionPending && m.unprepared() != "":
		return fmt.Errorf("nothing is encrypted yet: %s", m.unprepared())
	}
	return nil
}

// setRing replaces this host's keys.
func (n *Node) setRing(now, old ring) error {
	if now == old {
		return nil
	}
	if err := n.dir.writeRing(now); err != nil {
		return err
	}
	n.mu.Lock()
	n.ring = now
	n.changes++
	n.mu.Unlock()
	signal(n.apply)
	return nil
}

// registerKeys makes the registry's keys of this host those that it has.
func (n *Node) registerKeys(ctx context.Context, r ring, registered registry.WireGuard, lacks error) error {
	sending, only := 0, false
	if e, ok := n.cfg.Dataplane.(Encrypter); ok {
		sending, only = e.Sending()
		sending = max(sending, registered.Sending)
	}
	want, err := r.record(sending)
	if err != nil {
		return err
	}
	want.Only = only || registered.Only // also of a host without keys: it sends nothing
	if lacks != nil {
		want.Problem = lacks.Error()
	}
	if want == registered {
		return nil
	}
	err = n.registry.ChangeHost(ctx, n.settings.Host, func(h *registry.Host) { h.WireGuard = want })
	if errors.As(err, new(*registry.NotFoundError)) { // it was removed
		return nil
	}
	return err
}

// leadKeys takes one step of what the cluster needs.
func (n *Node) leadKeys(ctx context.Context, m *mirror) error {
	before := m.Cluster
	generation := m.generation()
	age := time.Since(before.Rotated)
	switch {
	case before.Encryption == registry.EncryptionPending && m.unprepared() == "":
		n.cfg.Log("all hosts have keys: from now on everything between them is encrypted")
		return n.registry.ChangeCluster(ctx, func(c *registry.Cluster) { c.Encryption = registry.EncryptionOn })
	case before.Generation < generation || m.relapsed:
		return n.registry.ChangeCluster(ctx, func(c *registry.Cluster) {
			c.Generation, c.Rotated = max(c.Generation, generation), time.Now().UTC().Truncate(time.Second)
			if before.Encryption == registry.EncryptionOn {
				c.Encryption = before.Encryption
			}
		})
	case age > rotateEvery || age < -rotateEvery: // a clock was wrong
		if err := n.rotate(ctx, m); !errors.As(err, new(*NotReadyError)) {
			return err
		}
	}
	return nil
}

// NotReadyError means that keys can't be replaced yet.
type NotReadyError struct{ Hosts []string }

func (e *NotReadyError) Error() string {
	return "replace keys: hosts that have not changed to the last ones yet: " + strings.Join(e.Hosts, ", ")
}

// rotate changes the generation, if all hosts are ready for it.
func (n *Node) rotate(ctx context.Context, m *mirror) error {
	generation := m.generation()
	if late := m.waits(time.Now(), func(w registry.WireGuard) bool { return w.First == generation && w.Sending == generation }); len(late) > 0 {
		return &NotReadyError{late}
	}
	n.cfg.Log("keys of WireGuard: the next ones, generation %d", generation+1)
	return n.registry.ChangeCluster(ctx, func(c *registry.Cluster) {
		if c.Generation <= generation {
			c.Generation, c.Rotated = generation+1, time.Now().UTC().Truncate(time.Second)
		}
	})
}

// rotateKeys replaces the keys of all hosts now.
func (n *Node) rotateKeys(ctx context.Context, _ *http.Request) (any, error) {
	n.mu.Lock()
	m := n.mirror.copy()
	n.mu.Unlock()
	if !m.needsKeys() {
		return nil, errors.New("no host uses WireGuard, so there are no keys; `cleat-node up` makes them with --encrypt or --dataplane wireguard")
	}
	return struct{}{}, n.rotate(ctx, m)
}

// encryption returns what the status says about encryption; nil without keys. It is called with mu held.
func (n *Node) encryption() *control.Encryption {
	c := n.mirror.Cluster
	if !n.mirror.needsKeys() {
		return nil
	}
	return &control.Encryption{State: c.Encryption, Generation: n.mirror.generation(), Since: c.Rotated}
}
