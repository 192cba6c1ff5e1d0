package named_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"cleat/network/attach"
	"cleat/network/named"
)

// A keeper that was started on demand stays a minute after the last container has left its network.
func TestUnused(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store, err := attach.OpenStore(dir)
		must(t, err)
		k := named.NewKeeper(named.KeeperConfig{Config: named.Config{Attach: attach.Config{Store: store}}})
		expect := func(when string, want bool, wantAgain time.Duration) {
			t.Helper()
			if unused, again := k.Unused(); unused != want || again != wantAgain {
				t.Errorf("%s: %v, again after %v, want %v and %v", when, unused, again, want, wantAgain)
			}
		}
		expect("no network", true, 0)
		endpoints := filepath.Join(dir, "networks", "web", "endpoints")
		must(t, os.MkdirAll(endpoints, 0o755))
		expect("an empty network", false, time.Minute)
		time.Sleep(40 * time.Second)
		expect("still empty", false, 20*time.Second)
		file := filepath.Join(endpoints, "netns.a.json")
		must(t, os.WriteFile(file, nil, 0o644))
		expect("a container", false, time.Minute)
		must(t, os.Remove(file))
		expect("it was asked just before", false, time.Second)
		time.Sleep(time.Second)
		expect("it has left", false, time.Minute)
		time.Sleep(time.Minute)
		expect("a minute later", true, 0)
	})
}
