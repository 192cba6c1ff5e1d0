package named_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/names"

	"github.com/google/go-cmp/cmp"
)

// TestTakeDown takes down networks and a plain attachment: the kernel is as before they were made,
// what is wanted stays in the files, and a repair restores everything. A TakeDown that is killed
// is completed by the next.
func TestTakeDown(t *testing.T) {
	var plain *attach.Attachment
	start := func() (tb *testbed, before []string) {
		tb = newTestbed(t, "a", "b")
		before = kernelLines(tb.snapshot())
		must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
		must(t, tb.create(named.NetworkSpec{Name: "db", Driver: named.Routed, Subnets: subnets(2)}))
		for _, c := range []struct {
			network, container string
			wanted             named.Connection
		}{
			{"web", "a", named.Connection{Aliases: []string{"front"}, Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}}},
			{"web", "b", named.Connection{}},
			{"db", "b", named.Connection{}},
		} {
			_, err := tb.connect(c.network, c.container, c.wanted)
			must(t, err)
		}
		must(t, tb.onHost(func() error {
			got, err := attach.Attach(t.Context(), tb.cfg.Attach, "test:a", attach.Spec{Kind: "bridge", Parent: "br0", Keep: true})
			if err == nil {
				plain = got.Attachment
			}
			return err
		}))
		return tb, before
	}
	takeDown := func(tb *testbed) (d *named.Down, err error) {
		err = tb.onHost(func() error { d, err = named.TakeDown(t.Context(), tb.cfg); return err })
		return d, err
	}
	tb, before := start()
	up := tb.snapshot()
	points := 0
	tb.cfg.Attach.Checkpoint = func() error { points++; return nil }
	d, err := takeDown(tb)
	must(t, err)
	if d.Networks != 2 || d.Attachments != 4 || len(d.Notes) > 0 {
		t.Errorf("took down %d networks and %d attachments, with notes %q", d.Networks, d.Attachments, d.Notes)
	}
	isDown := func(tb *testbed) {
		t.Helper()
		now := tb.snapshot()
		if got := kernelLines(now); !slices.Equal(got, before) {
			t.Fatalf("the kernel has\n%s\nbefore the first network it had\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
		}
		if got := wantedFiles(now); len(got) == 0 || !slices.Equal(got, wantedFiles(up)) {
			t.Fatalf("the files of what is wanted are\n%q, before they were\n%q", got, wantedFiles(up))
		}
		for _, line := range now {
			for _, dir := range []string{"/live/", "/ops/", "/netops/", "/shared/", "/claims/"} {
				if strings.Contains(line, dir) {
					t.Fatalf("left: %s", line)
				}
			}
		}
	}
	isDown(tb)
	tb.cfg.Attach.Checkpoint = nil
	must(t, tb.onHost(func() error {
		if _, err := named.RepairAll(t.Context(), tb.cfg); err != nil {
			return err
		}
		_, err := attach.Reattach(t.Context(), tb.cfg.Attach, plain)
		return err
	}))
	upByName := byName(up)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		diff := cmp.Diff(upByName, byName(tb.snapshot()))
		if diff == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("restored (-before +now):\n%s", diff)
			break
		}
	}
	tb.check()

	const every = 3 // a kill at each step would take half a minute
	for k := 0; k < points; k += every {
		tb, _ := start()
		n := 0
		tb.cfg.Attach.Checkpoint = func() error {
			if n++; n > k {
				return attach.ErrKilled
			}
			return nil
		}
		if _, err := takeDown(tb); !errors.Is(err, attach.ErrKilled) {
			t.Fatalf("killed at step %d of %d: got %v", k, points, err)
		}
		tb.cfg.Attach.Checkpoint = nil
		_, err := takeDown(tb)
		must(t, err)
		isDown(tb)
	}
	t.Logf("%d steps, killed at each third", points)
	if points == 0 {
		t.Error("there was no step to be killed at")
	}
}

// The name server ends, and containers get their old resolv.conf back, or none is left about them.
func TestTakeDownNames(t *testing.T) {
	tb := newTestbed(t, "a")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	_, err := tb.connect("web", "a", named.Connection{})
	must(t, err)
	tb.startKeeper()
	tb.stopKeeper()
	tb.cfg.Rules = nil
	must(t, tb.onHost(func() error { _, err := named.TakeDown(t.Context(), tb.cfg); return err }))
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := names.Dial(context.Background(), named.NameServerPath(tb.store))
		if errors.Is(err, names.ErrNotRunning) {
			break
		}
		if err == nil {
			c.Close()
		}
		if time.Now().After(deadline) {
			t.Fatal("the name server goes on")
		}
	}
	for _, line := range tb.snapshot() {
		if strings.Contains(line, "file /resolvers/") {
			t.Errorf("left: %s", line)
		}
	}
}

// index matches metrics and tables of routes that depend on the index of a device.
var index = regexp.MustCompile(`\b(metric|table) [0-9]{3,}`)

// byName returns a snapshot without indexes of devices.
func byName(snapshot []string) []string {
	var out []string
	for _, line := range snapshot {
		out = append(out, index.ReplaceAllString(line, "$1 INDEX"))
	}
	return out
}

// kernelLines returns the lines of a snapshot that are not about files.
func kernelLines(snapshot []string) []string {
	return slices.DeleteFunc(slices.Clone(snapshot), func(line string) bool { return strings.HasPrefix(line, "file ") })
}

// wantedFiles returns the lines of a snapshot about files of what is wanted.
func wantedFiles(snapshot []string) []string {
	return slices.DeleteFunc(slices.Clone(snapshot), func(line string) bool {
		return !strings.HasPrefix(line, "file /networks/") && !strings.HasPrefix(line, "file /attachments/") && !strings.HasPrefix(line, "file /ports/")
	})
}
