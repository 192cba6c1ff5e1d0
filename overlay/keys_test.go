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
	only    bool // nothing goes unencrypted
	mixed   bool // it does not happen when the cluster encrypts
}

func (d *cryptDataplane) Can(string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lacks
}

func (d *cryptDataplane) Sending() (generation int, only bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sending, d.only
}

func (d *cryptDataplane) Apply(_ context.Context, s State) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = s
	if !d.stuck {
		d.sending, d.only = s.WireGuard.Generation, s.Encrypted && !d.mixed
	}
	return nil
}

func (d *cryptDataplane) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
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
	hosts, planes := cryptHosts(t, true, "a", "b")
	in(t, 1, planes...)
	for i, d := range planes {
		if !d.last().Encrypted {
			t.Errorf("host %d does not encrypt", i)
		}
	}
	secret, err := os.Stat(hosts[1].dir + "/" + ringFile)
	must(t, err)
	if secret.Mode().Perm() != 0o600 {
		t.Errorf("the keys' file has the mode %v", secret.Mode())
	}
	before := planes[1].last().WireGuard.Keys
	planes[0].set(func() { planes[0].stuck = true })
	_, err = hosts[1].node.rotateKeys(t.Context(), nil)
	must(t, err)
	waitFor(t, "b changes", func() bool { return planes[1].last().WireGuard.Generation == 2 })
	waitFor(t, "a knows", func() bool {
		hosts[0].node.mu.Lock()
		defer hosts[0].node.mu.Unlock()
		return hosts[0].node.mirror.Hosts["b"].WireGuard.Sending == 2
	})
	if planes[1].last().WireGuard.Keys != before {
		t.Error("b has replaced a key with which a sends")
	}
	var late *NotReadyError
	if _, err := hosts[0].node.rotateKeys(t.Context(), nil); !errors.As(err, &late) || !slices.Contains(late.Hosts, "a") {
		t.Errorf("again: %v", err)
	}
	planes[0].set(func() { planes[0].stuck, planes[0].sending = false, 2 })
	signal(hosts[0].node.keys)
	in(t, 2, planes...)
	now := planes[1].last().WireGuard.Keys
	if now[registry.SlotOf(2)] != before[registry.SlotOf(2)] || now[registry.SlotOf(3)] == before[registry.SlotOf(1)] {
		t.Error("not the key of the last generation is replaced")
	}
	hosts[1].stop()
	hosts[1].start() // it has its keys still
	in(t, 2, planes...)
	if planes[1].last().WireGuard.Keys != now {
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
	hosts, planes := cryptHosts(t, false, "a", "b")
	for _, d := range planes {
		if s := d.last(); s.Encrypted || s.WireGuard != (WireGuard{}) {
			t.Errorf("without encryption: generation %d", s.WireGuard.Generation)
		}
	}
	hosts[1].stop()
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
	waitFor(t, "b is not alive", said("host b is not alive"))
	planes[1].set(func() { planes[1].lacks = errors.New("no WireGuard here") })
	hosts[1].start()
	waitFor(t, "b lacks something", said("host b can't encrypt: no WireGuard here"))
	if s := planes[0].last(); s.Encrypted || s.WireGuard.Generation == 0 {
		t.Errorf("encrypts already, or has no keys: generation %d", s.WireGuard.Generation)
	}
	planes[1].set(func() { planes[1].lacks, planes[1].mixed = nil, true })
	in(t, 1, planes...)
	for _, d := range planes {
		waitFor(t, "it encrypts", func() bool { return d.last().Encrypted })
	}
	only := func(d *cryptDataplane) func() bool { return func() bool { return d.last().Hosts[0].WireGuard.Only } }
	waitFor(t, "b knows that a sends nothing unencrypted", only(planes[1]))
	if only(planes[0])() {
		t.Error("b says that it sends nothing unencrypted, and it does")
	}
	planes[1].set(func() { planes[1].mixed, planes[1].only = false, true })
	signal(hosts[1].node.keys)
	waitFor(t, "a knows that b sends nothing unencrypted", only(planes[0]))
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
			for _, k := range got.Keys {
				if k[0]&7 != 0 || k[31]&128 != 0 || k[31]&64 == 0 {
					t.Errorf("the kernel would change the key") // and it would be set again and again
				}
			}
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

// TestRefused checks what a first host is refused for, before anything has changed.
func TestRefused(t *testing.T) {
	lacks := errors.New("no WireGuard here")
	for _, c := range []struct {
		name   string
		change func(*Self)
		want   string // "" for no error
	}{
		{"encrypted", func(*Self) {}, ""},
		{"a kernel without WireGuard", func(s *Self) { s.Can = func(string) error { return lacks } }, "no WireGuard here"},
		{"no ports", func(s *Self) { s.Port = 65534 }, "port 65534: want 1 to 65533"},
		{"the last ports", func(s *Self) { s.Port = 65533 }, ""},
		{"a way that does not encrypt", func(s *Self) { s.Dataplane = VXLAN }, "dataplane vxlan does not encrypt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, "a")
			h.self.Encrypt = true
			c.change(&h.self)
			_, err := Create(h.dir, h.self)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v", err)
			}
			if files, _ := os.ReadDir(h.dir); (len(files) == 0) != (c.want != "") {
				t.Errorf("%d files", len(files))
			}
		})
	}
}
