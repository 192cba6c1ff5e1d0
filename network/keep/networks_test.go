package keep_test

import (
	"context"
	"math"
	"net/netip"
	"testing"
	"time"

	"cleat/network/attach"
)

// fakeNetworks notes what a keeper reports to those who keep networks.
type fakeNetworks struct {
	changed  chan struct{}
	attached chan string
	usedFor  int // calls of Unused
}

func (f *fakeNetworks) Run(ctx context.Context) { <-ctx.Done() }

func (f *fakeNetworks) Unused() (bool, time.Duration) {
	if f.usedFor--; f.usedFor >= 0 {
		return false, time.Millisecond
	}
	return true, 0
}

func (f *fakeNetworks) Attached(_ context.Context, a *attach.Attachment) { f.attached <- a.ID }

func (f *fakeNetworks) ContainersChanged() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Who keeps networks hears that containers end, and which links of networks are made again.
func TestNetworksHear(t *testing.T) {
	w := newFakeHost(t)
	for name, network := range map[string]string{"web": "lan", "other": ""} {
		w.start(name, 0)
		must(t, w.host.Do(func() error {
			ip := netip.MustParsePrefix(map[string]string{"web": "192.0.2.10/24", "other": "192.0.2.11/24"}[name])
			_, err := attach.Attach(t.Context(), w.config(), name, attach.Spec{
				Kind: "bridge", Parent: "br0", Addresses: []netip.Prefix{ip}, Keep: true, Network: network})
			return err
		}))
	}
	f := &fakeNetworks{usedFor: math.MaxInt, changed: make(chan struct{}, 1), attached: make(chan string, 8)}
	cfg := w.keep()
	cfg.Networks = f
	tell, _ := w.keeper(cfg)
	for _, name := range []string{"other", "web"} {
		w.stop(name)
		w.start(name, 0)
	}
	tell()
	<-f.changed
	if got := <-f.attached; got != "docker.web.eth0" {
		t.Errorf("heard of %s", got)
	}
	w.attached("other", soon)
	if len(f.attached) > 0 {
		t.Errorf("also heard of %s", <-f.attached)
	}
}

// A keeper that was started on demand asks again whether networks need it, and ends when they don't.
func TestUnusedNetworks(t *testing.T) {
	w := newFakeHost(t)
	f := &fakeNetworks{usedFor: 3}
	cfg := w.keep()
	cfg.Networks, cfg.UntilIdle = f, true
	stop, ended := w.run(cfg)
	defer stop()
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the keeper stays")
	}
	if f.usedFor != -1 {
		t.Errorf("it asked %d times, want 4", 3-f.usedFor)
	}
}

// A keeper that has nothing to keep, but is busy for an engine, stays until it is not.
func TestBusy(t *testing.T) {
	w := newFakeHost(t)
	asked := 0
	cfg := w.keep()
	cfg.UntilIdle, cfg.Busy = true, func() bool { asked++; return asked < 3 }
	stop, ended := w.run(cfg)
	defer stop()
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the keeper stays")
	}
	if asked != 3 {
		t.Errorf("it asked %d times, want 3", asked)
	}
}
