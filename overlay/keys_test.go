package overlay

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/overlay/registry"
)

// cryptDataplane is a dataplane that sends as it is told at once, unless it is stuck.
type cryptDataplane struct {
	noDataplane
	mu      sync.Mutex
	lacks   error
	stuck   bool
	state   State
	sending int
}

func (d *cryptDataplane) Can(string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lacks
}

func (d *cryptDataplane) Sending() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sending
}

func (d *cryptDataplane) Apply(_ context.Context, s State) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = s
	if !d.stuck {
		d.sending = s.WireGuard.Generation
	}
	return nil
}

func (d *cryptDataplane) last() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// cryptHosts returns hosts of a cluster, and their dataplanes.
func cryptHosts(t *testing.T, encrypt bool, names ...string) (hosts []*testHost, planes []*cryptDataplane) {
	t.Helper()
	for i, name := range names {
		h, d := newHost(t, name), &cryptDataplane{}
		h.plane, h.self.Encrypt = d, encrypt
		if i == 0 {
			h.create(time.Now())
		} else {
			h.join(hosts[0], time.Now())
		}
		h.start()
		hosts, planes = append(hosts, h), append(planes, d)
	}
	return hosts, planes
}

// in waits until all dataplanes send with a generation, have both keys, and know all others'.
func in(t *testing.T, generation int, planes ...*cryptDataplane) {
	t.Helper()
	for _, d := range planes {
		waitFor(t, "the generation", func() bool {
			s := d.last()
			if s.WireGuard.Generation != generation || slices.Contains(s.WireGuard.Keys[:], Key{}) || len(s.Hosts) != len(planes)-1 {
				return false
			}
			return !slices.ContainsFunc(s.Hosts, func(h registry.Host) bool {
				return h.WireGuard.First != generation || h.WireGuard.Sending != generation
			})
		})
	}
}

// TestRotate replaces the keys of all hosts, and checks that a key is only replaced when no host sends with it.
func TestRotate(t *testing.T) {
	hosts, planes := cryptHosts(t, true, "a", "b", "c")
	in(t, 1, planes...)
	for _, d := range planes {
		if s := d.last(); !s.Encrypted {
			t.Error("the cluster does not encrypt")
		}
	}
	secret, err := os.Stat(hosts[0].dir + "/" + ringFile)
	must(t, err)
	if secret.Mode().Perm() != 0o600 {
		t.Errorf("the keys' file has the mode %v", secret.Mode())
	}
	before := planes[2].last().WireGuard.Keys
	planes[1].mu.Lock()
	planes[1].stuck = true
	planes[1].mu.Unlock()
	_, err = hosts[2].node.rotateKeys(t.Context(), nil)
	must(t, err)
	waitFor(t, "c changes", func() bool { return planes[2].last().WireGuard.Generation == 2 })
	waitFor(t, "all know that c has changed", func() bool {
		hosts[0].node.mu.Lock()
		defer hosts[0].node.mu.Unlock()
		return hosts[0].node.mirror.Hosts["c"].WireGuard.Sending == 2
	})
	if now := planes[2].last().WireGuard.Keys; now != before {
		t.Error("c has replaced a key with which b sends")
	}
	var late *NotReadyError
	if _, err := hosts[0].node.rotateKeys(t.Context(), nil); !errors.As(err, &late) || !slices.Contains(late.Hosts, "b") {
		t.Errorf("again: %v", err)
	}
	planes[1].mu.Lock()
	planes[1].stuck, planes[1].sending = false, 2
	planes[1].mu.Unlock()
	signal(hosts[1].node.keys)
	in(t, 2, planes...)
	now := planes[2].last().WireGuard.Keys
	if now[registry.SlotOf(2)] != before[registry.SlotOf(2)] || now[registry.SlotOf(3)] == before[registry.SlotOf(1)] {
		t.Error("not the key of the last generation is replaced")
	}
	hosts[2].stop()
	hosts[2].start() // it has its keys still
	t.Logf("%+v", planes[2].last())
	in(t, 2, planes...)
	if planes[2].last().WireGuard.Keys != now {
		t.Error("a restart replaces keys")
	}
}

// TestRotateByTime checks that keys are replaced when they are a day old.
func TestRotateByTime(t *testing.T) {
	hosts, planes := cryptHosts(t, true, "a", "b")
	in(t, 1, planes...)
	must(t, hosts[0].node.registry.ChangeCluster(t.Context(), func(c *registry.Cluster) { c.Rotated = time.Now().Add(-25 * time.Hour) }))
	in(t, 2, planes...)
}

// TestEncryptLater checks that a cluster begins to encrypt when all hosts have keys, and never stops.
func TestEncryptLater(t *testing.T) {
	hosts, planes := cryptHosts(t, false, "a", "b", "c")
	for _, d := range planes {
		if s := d.last(); s.Encrypted || s.WireGuard != (WireGuard{}) {
			t.Errorf("without encryption: %+v", s.WireGuard)
		}
	}
	planes[1].mu.Lock()
	planes[1].lacks = errors.New("no WireGuard here")
	planes[1].mu.Unlock()
	hosts[2].stop()
	hosts[0].stop()
	must(t, SetEncrypt(hosts[0].dir))
	hosts[0].start()
	said := func(text string) func() bool {
		return func() bool {
			hosts[0].node.mu.Lock()
			defer hosts[0].node.mu.Unlock()
			return strings.Contains(hosts[0].node.problems["encryption"], text)
		}
	}
	waitFor(t, "b is said to lack something", said("host b can't encrypt: no WireGuard here"))
	waitFor(t, "c is said not to be alive", said("host c is not alive"))
	if s := planes[0].last(); s.Encrypted || s.WireGuard.Generation == 0 {
		t.Errorf("encrypts already, or has no keys: %+v", s.WireGuard.Generation)
	}
	planes[1].mu.Lock()
	planes[1].lacks = nil
	planes[1].mu.Unlock()
	hosts[2].start()
	in(t, 1, planes...)
	for _, d := range planes {
		waitFor(t, "it encrypts", func() bool { return d.last().Encrypted })
	}
	waitFor(t, "nothing is said any more", func() bool { return !said("host")() })
	// A registry that says otherwise, such as an older copy, is put right.
	must(t, hosts[1].node.registry.ChangeCluster(t.Context(), func(c *registry.Cluster) { c.Encryption = "" }))
	waitFor(t, "the registry says so again", func() bool {
		c, err := hosts[1].node.registry.Cluster(t.Context())
		return err == nil && c.Encryption == registry.EncryptionOn
	})
	for _, d := range planes {
		if !d.last().Encrypted {
			t.Error("a host has stopped to encrypt")
		}
	}
}

// TestAway checks what a host does whose keys are older than those of the cluster, or newer.
func TestAway(t *testing.T) {
	r, err := ring{}.advanced(5, true)
	must(t, err)
	for _, c := range []struct {
		name       string
		generation int
		alone      bool
		first      int
		keeps      []int // which of the two keys
	}{
		{"the same generation", 5, true, 5, []int{0, 1}},
		{"the next one, others send with the last key", 6, false, 5, []int{0, 1}},
		{"the next one, nobody sends with the last key", 6, true, 6, []int{1}},
		{"away for long", 9, false, 9, nil},
		{"an older one", 3, true, 5, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := r.advanced(c.generation, c.alone)
			must(t, err)
			if got.First != c.first {
				t.Errorf("first %d", got.First)
			}
			for i, k := range r.Keys {
				if kept := slices.Contains(got.Keys[:], k); kept != slices.Contains(c.keeps, i) {
					t.Errorf("key %d kept: %v", i, kept)
				}
			}
			w := got.wireGuard(c.generation)
			if w.Generation < got.First || w.Generation > got.First+1 || w.Keys[registry.SlotOf(got.First)] != got.Keys[0] {
				t.Errorf("generation %d", w.Generation)
			}
		})
	}
}
