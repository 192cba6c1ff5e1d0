package named_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/names"
	"cleat/network/networktest"

	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(serveNamesEnv); path != "" {
		if err := names.Run(context.Background(), names.Config{Path: path}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if root := os.Getenv(rootEnv); root != "" {
		beContainer(root)
		os.Exit(0)
	}
	os.Exit(lab.RunTests(m))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testbed is a host with an uplink, and containers:
//
//	outside 198.51.100.2 ═══ nic ─ host 198.51.100.1/24   a, b, c …
type testbed struct {
	t             *testing.T
	host, outside *netns.NS
	containers    map[string]*netns.NS
	pids          map[string]int // of their first processes, if they have one
	state         string
	cfg           named.Config
	store         named.Store
	stopKeeper    func() // of startKeeper
}

func newTestbed(t *testing.T, containers ...string) *testbed {
	t.Helper()
	lab.Need(t)
	tb := &testbed{t: t, host: networktest.NewNS(t, "host"), outside: networktest.NewNS(t, "outside"), containers: map[string]*netns.NS{}, pids: map[string]int{}, state: filepath.Join(t.TempDir(), "state")}
	networktest.Connect(t, tb.host, tb.outside)
	for _, name := range containers {
		tb.containers[name] = networktest.NewNS(t, name)
	}
	store, err := attach.OpenStore(tb.state)
	must(t, err)
	tb.store = named.Store{Store: store}
	tb.cfg.Attach, tb.cfg.Files = attach.Config{Store: store, Find: tb.find}, &named.Files{}
	return tb
}

func (tb *testbed) find(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
	name := strings.TrimPrefix(ref, "test:")
	ns := tb.containers[name]
	if ns == nil {
		return attach.Container{}, nil, netns.ErrNotFound
	}
	c := attach.Container{Ref: ref, Engine: "test", Name: name, Path: ns.Path()}
	if c.PID = tb.pids[name]; c.PID != 0 {
		c.Path = fmt.Sprintf("/proc/%d/ns/net", c.PID)
	}
	own, err := netns.Open(c.Path)
	return c, own, err
}

// onHost runs f in the host's namespace.
func (tb *testbed) onHost(f func() error) error { return tb.host.Do(f) }

func (tb *testbed) create(spec named.NetworkSpec) error {
	return tb.onHost(func() error { _, err := named.Create(tb.t.Context(), tb.cfg, spec); return err })
}

func (tb *testbed) remove(name string, force bool) error {
	return tb.onHost(func() error { _, err := named.Remove(tb.t.Context(), tb.cfg, name, force); return err })
}

func (tb *testbed) connect(network, container string, c named.Connection) (e *named.Endpoint, err error) {
	err = tb.onHost(func() error {
		got, err := named.Connect(tb.t.Context(), tb.cfg, network, container, c)
		if err == nil {
			e = got.Endpoint
		}
		return err
	})
	return e, err
}

func (tb *testbed) disconnect(network, container string) error {
	return tb.onHost(func() error { _, err := named.Disconnect(tb.t.Context(), tb.cfg, network, container); return err })
}

func (tb *testbed) repair() error {
	return tb.onHost(func() error {
		notes, err := named.Repair(tb.t.Context(), tb.cfg)
		if err == nil && len(notes) > 0 {
			err = errors.New(strings.Join(notes, "; "))
		}
		return err
	})
}

// check checks that the kernel has what the files say.
func (tb *testbed) check() {
	tb.t.Helper()
	must(tb.t, tb.onHost(func() error {
		found, err := named.Check(tb.t.Context(), tb.cfg)
		for _, d := range found {
			tb.t.Errorf("difference: %s", d)
		}
		return err
	}))
}

// snapshot returns all state that commands could change, with what is random or a time left
// out: Ethernet addresses and indexes, and the text of files.
func (tb *testbed) snapshot() []string {
	var out []string
	namespaces := []*netns.NS{tb.host, tb.outside}
	for _, name := range slices.Sorted(mapKeys(tb.containers)) {
		namespaces = append(namespaces, tb.containers[name])
	}
	for _, ns := range namespaces {
		for _, line := range networktest.Netlink(tb.t, ns) {
			if strings.HasPrefix(line, "route ff00::/8") {
				continue // it comes with the carrier, which the kernel notices later
			}
			out = append(out, ns.String()+": "+stable(line))
		}
	}
	for _, line := range networktest.Files(tb.t, tb.state) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "file "), " ")
		if base := filepath.Base(name); !strings.HasPrefix(base, ".") { // hints and notes about addresses
			out = append(out, "file "+stable(name))
		}
	}
	slices.Sort(out)
	return out
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// random matches names that differ from one testbed to another: of namespaces in the names of
// files, of links, and of the table.
var random = regexp.MustCompile(`since \S+|(shared/|claims/)[0-9a-z]+%20|veth[0-9a-z]{11}|cleat-net-[0-9a-f]{8}|cl[0-9a-f]{8}in|=(?:[0-9a-f]{2}:){5}[0-9a-f]{2}|/run/[0-9a-f-]{36}`)

// stable removes Ethernet addresses, random names, and metrics that depend on a device's index from a
// line of a snapshot.
func stable(line string) string {
	words := strings.Fields(line)
	for i, w := range words {
		if strings.Count(w, ":") == 5 && len(w) == 17 {
			words[i] = "MAC"
		}
		if i > 0 && words[i-1] == "metric" && strings.Contains(line, "route ::1/128 ") && w != "0" {
			words[i] = "INDEX"
		}
	}
	return random.ReplaceAllString(strings.Join(words, " "), "$1")
}

// settled returns the snapshot once the kernel has noticed which links have a carrier: it is
// the same twice.
func (tb *testbed) settled(wanted ...[]string) []string {
	tb.t.Helper()
	deadline := time.Now().Add(10 * time.Second) // linkwatch runs once a second (net/core/link_watch.c)
	for {
		now := tb.snapshot()
		for _, w := range wanted {
			if slices.Equal(now, w) {
				return now
			}
		}
		if time.Now().After(deadline) {
			return now
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// is checks that the state is one of those wanted, and returns which.
func (tb *testbed) is(what string, wanted ...[]string) int {
	tb.t.Helper()
	now := tb.settled(wanted...)
	for i, w := range wanted {
		if slices.Equal(now, w) {
			return i
		}
	}
	tb.t.Fatalf("%s: the state is none of those expected (-first +now):\n%s", what, cmp.Diff(wanted[0], now))
	return -1
}
