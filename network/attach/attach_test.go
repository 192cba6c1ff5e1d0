package attach_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/networktest"

	"github.com/vishvananda/netlink"
)

// TestKilledProcess kills a real process, which leaves its journal without an owner, at
// some points. TestAllOrNothing tests all points within one process.
func TestKilledProcess(t *testing.T) {
	tb := newTestbed(t)
	tb.repair()
	before := tb.snapshot()
	for k := 0; ; k += 3 {
		cmd := exec.Command(os.Args[0], strconv.Itoa(k), tb.state, tb.web.Path())
		cmd.Env = append(os.Environ(), killEnv+"=1")
		cmd.Stderr = os.Stderr
		must(t, tb.host.Start(cmd))
		err := cmd.Wait()
		if err == nil && k > 20 {
			must(t, tb.detach("eth0", nil))
			tb.unchanged(before, "detached")
			return
		}
		if code := cmd.ProcessState.ExitCode(); code != -1 {
			t.Fatalf("to be killed at point %d: ended with status %d", k, code)
		}
		tb.repair()
		tb.unchanged(before, "killed at point "+strconv.Itoa(k))
	}
}

// TestInterrupted checks that an operation whose context is canceled is undone at once.
func TestInterrupted(t *testing.T) {
	tb := newTestbed(t)
	tb.repair()
	before := tb.snapshot()
	ctx, cancel := context.WithCancel(t.Context())
	points := 0
	cfg := tb.config().WithHook(func() error {
		if points++; points == 12 {
			cancel()
		}
		return nil
	})
	err := tb.onHost(func() error {
		_, err := attach.Attach(ctx, cfg, "web", attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true})
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	tb.unchanged(before, "interrupted")
}

// containers returns a Config that finds n new containers, c0, c1 and so on.
func (tb *testbed) containers(n int) attach.Config {
	all := map[string]*netns.NS{}
	for i := range n {
		name := "c" + strconv.Itoa(i)
		all[name] = networktest.NewNS(tb.t, name)
	}
	return attach.Config{Store: tb.store, Find: func(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
		c := attach.Container{Ref: ref, Engine: "test", Name: ref, Path: all[ref].Path()}
		ns, err := netns.Open(c.Path)
		return c, ns, err
	}}
}

// parallel runs f(0) to f(n-1) on the host, all at the same time.
func (tb *testbed) parallel(n int, f func(i int) error) {
	tb.t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := tb.onHost(func() error { return f(i) }); err != nil {
				tb.t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// TestConcurrentAttach attaches fifty containers at the same time to one bridge, which
// does not exist yet, and detaches them at the same time.
func TestConcurrentAttach(t *testing.T) {
	const n = 50
	tb := newTestbed(t)
	tb.repair()
	cfg := tb.containers(n)
	before := tb.snapshot()
	tb.parallel(n, func(i int) error {
		_, err := attach.Attach(t.Context(), cfg, "c"+strconv.Itoa(i), attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes(fmt.Sprintf("192.0.2.%d/24", i+10)), Masquerade: true})
		return err
	})
	all := tb.list()
	attached := func(s attach.Status) bool { return s.State == attach.Attached }
	if len(all) != n || slices.ContainsFunc(all, func(s attach.Status) bool { return !attached(s) }) {
		t.Errorf("%d attachments are listed, want %d, all attached: %+v", len(all), n, all)
	}
	tb.parallel(n, func(i int) error {
		_, _, err := attach.Detach(t.Context(), cfg, "c"+strconv.Itoa(i), "eth0")
		return err
	})
	tb.unchanged(before, "all detached")
}

// TestConcurrentNames attaches forty links to one container at the same time: each gets
// its own name.
func TestConcurrentNames(t *testing.T) {
	const n = 40
	tb := newTestbed(t)
	var mu sync.Mutex
	names := map[string]bool{}
	tb.parallel(n, func(i int) error {
		got, err := attach.Attach(t.Context(), tb.config(), "web", attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes(fmt.Sprintf("192.0.2.%d/24", i+10))})
		if err == nil {
			mu.Lock()
			names[got.Attachment.Spec.Name] = true
			mu.Unlock()
		}
		return err
	})
	if len(names) != n {
		t.Errorf("names %v, want %d different ones", names, n)
	}
}

// TestKeepsForeignLink checks that repairing does not remove a link of the same name that
// somebody else made.
func TestKeepsForeignLink(t *testing.T) {
	tb := newTestbed(t)
	spec := attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}
	if _, err := tb.attach(spec, killAt(8)); !errors.Is(err, attach.ErrKilled) {
		t.Fatal(err)
	}
	h := handle(t, tb.web)
	l, err := h.LinkByName("eth0")
	must(t, err)
	must(t, h.LinkDel(l))
	// The same name and even the same index.
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: l.Attrs().Index}, PeerName: "other"}))
	tb.repair()
	if _, err := h.LinkByName("eth0"); err != nil {
		t.Errorf("the other link is gone: %v", err)
	}
}

// TestOtherContainerSameName detaches after the container's name has passed to another
// container: only the first container loses its link.
func TestOtherContainerSameName(t *testing.T) {
	tb := newTestbed(t)
	_, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}, nil)
	must(t, err)
	again := networktest.NewNS(t, "again")
	_, err = link.Create(again, link.VethSpec{Attrs: link.Attrs{Name: "eth0"}, Peer: link.Attrs{Name: "other"}}, link.Target{})
	must(t, err)
	tb.container.Path = again.Path()
	if all := tb.list(); len(all) != 1 {
		t.Fatalf("listed: %+v", all)
	}
	must(t, tb.detach("eth0", nil))
	if _, err := link.Find(again, "eth0"); err != nil {
		t.Errorf("the other container lost its link: %v", err)
	}
	if _, err := link.Find(tb.web, "eth0"); err == nil {
		t.Error("the first container, which still exists, still has its link")
	}
}

// restartContainer attaches, ends the container, and starts another with its name. It
// returns the spec.
func (tb *testbed) restartContainer() attach.Spec {
	tb.t.Helper()
	spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}
	_, err := tb.attach(spec, nil)
	must(tb.t, err)
	must(tb.t, tb.web.Close())
	tb.web = networktest.NewNS(tb.t, "restarted")
	tb.container.Path = tb.web.Path()
	return spec
}

// TestContainerRestarted attaches a restarted container again: it gets the same link name
// and address.
func TestContainerRestarted(t *testing.T) {
	tb := newTestbed(t)
	spec := tb.restartContainer()
	_, err := tb.attach(spec, nil)
	must(t, err)
	all := tb.list()
	if len(all) != 1 || all[0].State != attach.Attached {
		t.Errorf("listed: %+v", all)
	}
	must(t, tb.detach("eth0", nil))
	if left := networktest.Files(t, tb.state); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestAddressOfGoneContainer checks that another container can have the address of one
// that ended.
func TestAddressOfGoneContainer(t *testing.T) {
	tb := newTestbed(t)
	spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}
	_, err := tb.attach(spec, nil)
	must(t, err)
	other := networktest.NewNS(t, "other")
	tb.container = attach.Container{Engine: "test", Name: "web2", Path: other.Path()}
	cfg := tb.config()
	try := func() error {
		return tb.onHost(func() error {
			_, err := attach.Attach(t.Context(), cfg, "web2", spec)
			return err
		})
	}
	var taken *attach.TakenError
	if err := try(); !errors.As(err, &taken) || taken.Holder == nil || taken.Owner != "eth0 of web" {
		t.Errorf("address of a running container: %v", err)
	}
	must(t, tb.web.Close())
	must(t, try())
}

// TestContainerEndsDuringAttach checks that attaching notices the end of the container,
// although it holds a descriptor that keeps the namespace alive.
func TestContainerEndsDuringAttach(t *testing.T) {
	tb := newTestbed(t)
	tb.repair()
	tb.web.Close()
	dies, err := netns.New("dies")
	must(t, err)
	tb.web = networktest.NewNS(t, "other")
	before := tb.snapshot()
	tb.container.Path = dies.Path()
	n := 0
	_, err = tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}, func() error {
		if n++; n == 5 {
			return dies.Close()
		}
		return nil
	})
	if !errors.Is(err, attach.ErrContainerGone) {
		t.Errorf("attached to a container that ended: %v", err)
	}
	tb.unchanged(before, "the container ended")
}

// TestKeepsBridgeWithForeignPorts checks that a bridge of ours stays as long as it has a
// port that somebody else added.
func TestKeepsBridgeWithForeignPorts(t *testing.T) {
	tb := newTestbed(t)
	_, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}, nil)
	must(t, err)
	must(t, find(t, tb.host, "nic").SetMaster("br0"))
	must(t, tb.onHost(func() error {
		_, notes, err := attach.Detach(t.Context(), tb.config(), "web", "eth0")
		if want := []string{"bridge br0 is kept, because it has the port nic"}; !slices.Equal(notes, want) {
			t.Errorf("notes %q, want %q", notes, want)
		}
		return err
	}))
	if _, err := link.Find(tb.host, "br0"); err != nil {
		t.Errorf("the bridge was removed though it has a foreign port: %v", err)
	}
}

// TestBridgeIsFull checks the error for a bridge that has the maximum number of ports.
func TestBridgeIsFull(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: making a thousand links takes seconds")
	}
	tb := newTestbed(t)
	tb.repair()
	br, err := link.Create(tb.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br0"}}, link.Target{})
	must(t, err)
	must(t, br.Up())
	h := handle(t, tb.host)
	for i := range 512 { // 1,023 ports, the most a bridge can have
		a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
		must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a, MasterIndex: br.Index()}, PeerName: b}))
		if i == 511 {
			break
		}
		l, err := h.LinkByName(b)
		must(t, err)
		must(t, h.LinkSetMasterByIndex(l, br.Index()))
	}
	spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}
	_, planned := tb.preview(spec)
	if _, err := tb.attach(spec, nil); !errors.Is(err, attach.ErrBridgeFull) || !errors.Is(planned, attach.ErrBridgeFull) {
		t.Errorf("port 1,024: %v; planned: %v; want ErrBridgeFull", err, planned)
	}
	if _, err := link.Find(tb.web, "eth0"); err == nil {
		t.Error("the link remains in the container")
	}
}

// TestDNS checks that name servers are written to the container's own resolv.conf and
// that detaching restores it, unless it has changed since.
func TestDNS(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	conf := filepath.Join(root, "etc", "resolv.conf")
	const had = "search example.org\nnameserver 192.0.2.1\n"
	must(t, os.WriteFile(conf, []byte(had), 0o644))
	tb := newTestbed(t)
	tb.container.PID = startChrooted(t, tb.web, root)
	tb.container.Path = fmt.Sprintf("/proc/%d/ns/net", tb.container.PID)
	spec := attach.Spec{Kind: "macvlan", Parent: "nic", DNS: addrs("192.0.2.53", "2001:db8::53")}
	text := func() string {
		b, err := os.ReadFile(conf)
		must(t, err)
		return string(b)
	}
	_, err := tb.attach(spec, nil)
	must(t, err)
	if got := text(); got != "search example.org\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n" {
		t.Errorf("attached: resolv.conf is %q", got)
	}
	must(t, tb.detach("eth0", nil))
	if got := text(); got != had {
		t.Errorf("detached: resolv.conf is %q", got)
	}
	for k := 0; ; k++ {
		_, err := tb.attach(spec, killAt(k))
		tb.repair()
		if err == nil {
			break
		}
		if got := text(); got != had {
			t.Fatalf("killed at point %d: resolv.conf is %q", k, got)
		}
	}
	must(t, os.WriteFile(conf, []byte("nameserver 192.0.2.99\n"), 0o644))
	must(t, tb.detach("eth0", nil))
	if got := text(); got != "nameserver 192.0.2.99\n" {
		t.Errorf("resolv.conf, changed by somebody else, became %q", got)
	}
	// A symbolic link in the container is not followed out of it.
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("mine"), 0o644))
	must(t, os.Remove(conf))
	must(t, os.Symlink(outside, conf))
	if _, err := tb.attach(spec, nil); err == nil {
		t.Error("a symbolic link out of the container was followed")
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "mine" {
		t.Errorf("the file outside is %q, %v", b, err)
	}
}

// TestPreviewMatchesAttach checks that Preview and Attach return the same steps.
func TestPreviewMatchesAttach(t *testing.T) {
	for _, c := range atomicCases() {
		t.Run(c.name, func(t *testing.T) {
			needKinds(t, c.needs...)
			tb := newTestbed(t)
			if c.prep != nil {
				c.prep(t, tb, &c.spec)
			}
			before := tb.snapshot()
			plan, err := tb.preview(c.spec)
			must(t, err)
			tb.unchanged(before, "planned")
			done, err := tb.attach(c.spec, nil)
			must(t, err)
			texts := func(r *attach.Result) string {
				var lines []string
				for _, s := range r.Steps {
					lines = append(lines, s.String())
				}
				return strings.Join(lines, "\n")
			}
			if texts(plan) != texts(done) {
				t.Errorf("planned:\n%s\ndone:\n%s", texts(plan), texts(done))
			}
		})
	}
}

// TestPhysReturnsByItself detaches a device that is already back on the host under the
// container's name for it. The kernel moves a network card back when the container ends.
// A veth is no card, so the test moves it.
func TestPhysReturnsByItself(t *testing.T) {
	tb := newTestbed(t)
	tb.repair()
	before := tb.snapshot()
	_, err := tb.attach(attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7", Addresses: prefixes("192.0.2.10/24")}, nil)
	must(t, err)
	must(t, find(t, tb.web, "eth7").Move(tb.host, ""))
	must(t, tb.detach("eth7", nil))
	tb.unchanged(before, "the device is back")
}

// TestPhysNameInUse checks that a device whose name is in use on the host comes back
// under the name it had in the container.
func TestPhysNameInUse(t *testing.T) {
	tb := newTestbed(t)
	_, err := tb.attach(attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7"}, nil)
	must(t, err)
	_, err = link.Create(tb.host, link.VethSpec{Attrs: link.Attrs{Name: "nic"}, Peer: link.Attrs{Name: "other"}}, link.Target{})
	must(t, err)
	must(t, tb.detach("eth7", nil))
	back := find(t, tb.host, "eth7")
	all, err := handle(t, tb.host).AddrList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: back.Index()}}, netlink.FAMILY_V4)
	must(t, err)
	if len(all) != 1 || !all[0].IP.Equal(netip.MustParseAddr("198.51.100.1").AsSlice()) {
		t.Errorf("the addresses of the device are %v", all)
	}
}

// startChrooted starts a process in ns with the given root directory, and returns its
// PID.
func startChrooted(t *testing.T, ns *netns.NS, root string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0], root)
	cmd.Env = append(os.Environ(), rootEnv+"=1")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, ns.Start(cmd))
	t.Cleanup(func() {
		in.Close()
		must(t, cmd.Wait())
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the process did not report: %v", err)
	}
	return cmd.Process.Pid
}

// TestRenamedLinkIsStillAttached renames the link in the container: its old name stays
// reserved, and detaching finds it.
func TestRenamedLinkIsStillAttached(t *testing.T) {
	tb := newTestbed(t)
	spec := attach.Spec{Kind: "bridge", Parent: "br0"}
	_, err := tb.attach(spec, nil)
	must(t, err)
	h := handle(t, tb.web)
	l, err := h.LinkByName("eth0")
	must(t, err)
	must(t, h.LinkSetDown(l))
	must(t, h.LinkSetName(l, "mine"))
	got, err := tb.attach(spec, nil)
	must(t, err)
	if name := got.Attachment.Spec.Name; name != "eth1" {
		t.Errorf("the next link is called %s, want eth1", name)
	}
	spec.Name = "eth0"
	var taken *attach.TakenError
	if _, err := tb.attach(spec, nil); !errors.As(err, &taken) || taken.Holder == nil || taken.Owner != "an attachment of web" {
		t.Errorf("attached again under the old name: %v", err)
	}
	must(t, tb.detach("eth0", nil))
	if _, err := link.Find(tb.web, "mine"); err == nil {
		t.Error("detached, but the link still exists")
	}
}

// TestKilledReplacementKeepsSpec kills the attaching of a restarted container: the
// attachment of the container that ended stays stored.
func TestKilledReplacementKeepsSpec(t *testing.T) {
	tb := newTestbed(t)
	spec := tb.restartContainer()
	before := tb.list()[0].Attachment
	for k := 0; ; k++ {
		_, err := tb.attach(spec, killAt(k))
		tb.repair()
		if err == nil {
			return
		}
		if all := tb.list(); len(all) != 1 || all[0].Container != before.Container {
			t.Fatalf("killed at point %d, listed: %+v", k, all)
		}
	}
}
