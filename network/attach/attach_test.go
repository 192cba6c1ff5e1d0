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

	"github.com/vishvananda/netlink"
)

// A process that is killed, not only one that stops, leaves its journal without an
// owner: at some points here, at all of them in TestAllOrNothing.
func TestKilledProcess(t *testing.T) {
	w := newWorld(t)
	w.repair()
	before := w.snapshot()
	for k := 0; ; k += 3 {
		cmd := exec.Command(os.Args[0], strconv.Itoa(k), w.state, w.web.Path())
		cmd.Env = append(os.Environ(), killEnv+"=1")
		cmd.Stderr = os.Stderr
		must(t, w.host.Start(cmd))
		err := cmd.Wait()
		if err == nil && k > 20 {
			must(t, w.detach("eth0", nil))
			w.unchanged(before, "detached")
			return
		}
		if code := cmd.ProcessState.ExitCode(); code != -1 {
			t.Fatalf("killed at point %d: ended with %d", k, code)
		}
		w.repair()
		w.unchanged(before, "killed at point "+strconv.Itoa(k))
	}
}

// An interrupted operation is taken back at once.
func TestInterrupted(t *testing.T) {
	w := newWorld(t)
	w.repair()
	before := w.snapshot()
	ctx, cancel := context.WithCancel(t.Context())
	points := 0
	cfg := w.config().WithHook(func() error {
		if points++; points == 12 {
			cancel()
		}
		return nil
	})
	err := w.do(func() error {
		_, err := attach.Attach(ctx, cfg, "web", attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true})
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	w.unchanged(before, "interrupted")
}

// crowd is a config that finds n containers, c0 and so on.
func (w *world) crowd(n int) attach.Config {
	all := map[string]*netns.NS{}
	for i := range n {
		name := "c" + strconv.Itoa(i)
		all[name] = newNS(w.t, name)
	}
	return attach.Config{Store: w.store, Find: func(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
		c := attach.Container{Ref: ref, Engine: "test", Name: ref, Path: all[ref].Path()}
		ns, err := netns.Open(c.Path)
		return c, ns, err
	}}
}

// atOnce runs f for each number on the host, all at the same time.
func (w *world) atOnce(n int, f func(i int) error) {
	w.t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := w.do(func() error { return f(i) }); err != nil {
				w.t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// Fifty attach to one bridge, which none has made yet, and detach, at once.
func TestFiftyAtOnce(t *testing.T) {
	const n = 50
	w := newWorld(t)
	w.repair()
	cfg := w.crowd(n)
	before := w.snapshot()
	w.atOnce(n, func(i int) error {
		_, err := attach.Attach(t.Context(), cfg, "c"+strconv.Itoa(i), attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes(fmt.Sprintf("192.0.2.%d/24", i+10)), Masquerade: true})
		return err
	})
	all := w.list()
	attached := func(s attach.Status) bool { return s.State == attach.Attached }
	if len(all) != n || slices.ContainsFunc(all, func(s attach.Status) bool { return !attached(s) }) {
		t.Errorf("%d attachments are listed, want %d, all attached: %+v", len(all), n, all)
	}
	w.atOnce(n, func(i int) error {
		_, _, err := attach.Detach(t.Context(), cfg, "c"+strconv.Itoa(i), "eth0")
		return err
	})
	w.unchanged(before, "all are detached")
}

// Forty links for one container at once have forty names.
func TestNamesAtOnce(t *testing.T) {
	const n = 40
	w := newWorld(t)
	var mu sync.Mutex
	names := map[string]bool{}
	w.atOnce(n, func(i int) error {
		got, err := attach.Attach(t.Context(), w.config(), "web", attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes(fmt.Sprintf("192.0.2.%d/24", i+10))})
		if err == nil {
			mu.Lock()
			names[got.Attachment.Spec.Name] = true
			mu.Unlock()
		}
		return err
	})
	if len(names) != n {
		t.Errorf("the names are %v, want %d", names, n)
	}
}

// What others make under the same names is theirs.
func TestOthersThingsStay(t *testing.T) {
	w := newWorld(t)
	want := attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}
	if _, err := w.attach(want, stopAt(8)); !errors.Is(err, attach.ErrKilled) {
		t.Fatal(err)
	}
	h := handle(t, w.web)
	l, err := h.LinkByName("eth0")
	must(t, err)
	must(t, h.LinkDel(l))
	// Somebody makes another, with the same name and even the same number.
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: l.Attrs().Index}, PeerName: "other"}))
	w.repair()
	if _, err := h.LinkByName("eth0"); err != nil {
		t.Errorf("somebody else's link is gone: %v", err)
	}
}

// Another namespace with the container's inode number or path is not the container.
func TestAnotherContainerOfThatName(t *testing.T) {
	w := newWorld(t)
	_, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}, nil)
	must(t, err)
	again := newNS(t, "again")
	_, err = link.Create(again, link.VethSpec{Attrs: link.Attrs{Name: "eth0"}, Peer: link.Attrs{Name: "other"}}, link.Target{})
	must(t, err)
	w.container.Path = again.Path()
	if all := w.list(); len(all) != 1 {
		t.Fatalf("listed: %+v", all)
	}
	must(t, w.detach("eth0", nil))
	if _, err := link.Find(again, "eth0"); err != nil {
		t.Errorf("the other container's link is gone: %v", err)
	}
	if _, err := link.Find(w.web, "eth0"); err == nil {
		t.Error("the first container, which is still there, has its link still")
	}
}

// beginsAnew has the container end after it was attached, and another have its name.
func (w *world) beginsAnew() attach.Spec {
	w.t.Helper()
	want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}
	_, err := w.attach(want, nil)
	must(w.t, err)
	must(w.t, w.web.Close())
	w.web = newNS(w.t, "web again")
	w.container.Path = w.web.Path()
	return want
}

// A container that ends and begins anew is attached again under the same name, and
// has the same address again.
func TestContainerBeganAnew(t *testing.T) {
	w := newWorld(t)
	want := w.beginsAnew()
	_, err := w.attach(want, nil)
	must(t, err)
	all := w.list()
	if len(all) != 1 || all[0].State != attach.Attached {
		t.Errorf("listed: %+v", all)
	}
	must(t, w.detach("eth0", nil))
	if left := files(t, w.state); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Another container may have the address of one that ended.
func TestAddressOfAGoneContainer(t *testing.T) {
	w := newWorld(t)
	want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}
	_, err := w.attach(want, nil)
	must(t, err)
	other := newNS(t, "other")
	w.container = attach.Container{Engine: "test", Name: "web2", Path: other.Path()}
	cfg := w.config()
	try := func() error {
		return w.do(func() error {
			_, err := attach.Attach(t.Context(), cfg, "web2", want)
			return err
		})
	}
	var taken *attach.TakenError
	if err := try(); !errors.As(err, &taken) || taken.Holder == nil || taken.Owner != "eth0 of web" {
		t.Errorf("while the first has it: %v", err)
	}
	must(t, w.web.Close())
	must(t, try())
}

// The container's end in the middle of it all is noticed: our own descriptor keeps
// its namespace alive.
func TestContainerGoneMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.repair()
	w.web.Close()
	dies, err := netns.New("dies")
	must(t, err)
	w.web = newNS(t, "other")
	before := w.snapshot()
	w.container.Path = dies.Path()
	n := 0
	_, err = w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}, func() error {
		if n++; n == 5 {
			return dies.Close()
		}
		return nil
	})
	if !errors.Is(err, attach.ErrContainerGone) {
		t.Errorf("attached to a container that is gone: %v", err)
	}
	w.unchanged(before, "the container is gone")
}

// A bridge of ours that somebody plugs his own link into stays as long.
func TestBridgeWithOthersPorts(t *testing.T) {
	w := newWorld(t)
	_, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}, nil)
	must(t, err)
	must(t, find(t, w.host, "nic").SetMaster("br0"))
	must(t, w.do(func() error {
		_, notes, err := attach.Detach(t.Context(), w.config(), "web", "eth0")
		if want := []string{"bridge br0 is kept, because it has the port nic"}; !slices.Equal(notes, want) {
			t.Errorf("notes %q, want %q", notes, want)
		}
		return err
	}))
	if _, err := link.Find(w.host, "br0"); err != nil {
		t.Errorf("the bridge went from under somebody else's port: %v", err)
	}
}

// A bridge has so many ports and no more; the error says so.
func TestBridgeIsFull(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a thousand links take seconds")
	}
	w := newWorld(t)
	w.repair()
	br, err := link.Create(w.host, link.BridgeSpec{Attrs: link.Attrs{Name: "br0"}}, link.Target{})
	must(t, err)
	must(t, br.Up())
	h := handle(t, w.host)
	for i := range 512 { // 1,024 ends
		a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
		must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a, MasterIndex: br.Index()}, PeerName: b}))
		if i == 511 {
			break
		}
		l, err := h.LinkByName(b)
		must(t, err)
		must(t, h.LinkSetMasterByIndex(l, br.Index()))
	}
	want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}
	_, planned := w.preview(want)
	if _, err := w.attach(want, nil); !errors.Is(err, attach.ErrBridgeFull) || !errors.Is(planned, attach.ErrBridgeFull) {
		t.Errorf("the 1,024th port: %v, planned: %v, want ErrBridgeFull", err, planned)
	}
	if _, err := link.Find(w.web, "eth0"); err == nil {
		t.Error("the link was left in the container")
	}
}

// Name servers are written into the container's own file, and are gone again with
// all else; of a file that changed meanwhile hands are off.
func TestDNS(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	conf := filepath.Join(root, "etc", "resolv.conf")
	const had = "search example.org\nnameserver 192.0.2.1\n"
	must(t, os.WriteFile(conf, []byte(had), 0o644))
	w := newWorld(t)
	w.container.PID = startRooted(t, w.web, root)
	w.container.Path = fmt.Sprintf("/proc/%d/ns/net", w.container.PID)
	want := attach.Spec{Kind: "macvlan", Parent: "nic", DNS: addrs("192.0.2.53", "2001:db8::53")}
	text := func() string {
		b, err := os.ReadFile(conf)
		must(t, err)
		return string(b)
	}
	_, err := w.attach(want, nil)
	must(t, err)
	if got := text(); got != "search example.org\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n" {
		t.Errorf("resolv.conf is %q", got)
	}
	must(t, w.detach("eth0", nil))
	if got := text(); got != had {
		t.Errorf("afterwards it is %q", got)
	}
	for k := 0; ; k++ {
		_, err := w.attach(want, stopAt(k))
		w.repair()
		if err == nil {
			break
		}
		if got := text(); got != had {
			t.Fatalf("killed at point %d it is %q", k, got)
		}
	}
	must(t, os.WriteFile(conf, []byte("nameserver 192.0.2.99\n"), 0o644))
	must(t, w.detach("eth0", nil))
	if got := text(); got != "nameserver 192.0.2.99\n" {
		t.Errorf("what somebody else wrote became %q", got)
	}
	// A link in the container's files leads nowhere else.
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("mine"), 0o644))
	must(t, os.Remove(conf))
	must(t, os.Symlink(outside, conf))
	if _, err := w.attach(want, nil); err == nil {
		t.Error("a link that leads out of the container was followed")
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "mine" {
		t.Errorf("the file outside is %q: %v", b, err)
	}
}

// Preview and Attach have the same steps.
func TestPlanIsWhatIsDone(t *testing.T) {
	for _, c := range trialCases() {
		t.Run(c.name, func(t *testing.T) {
			need(t, c.needs...)
			w := newWorld(t)
			if c.prep != nil {
				c.prep(t, w, &c.want)
			}
			before := w.snapshot()
			plan, err := w.preview(c.want)
			must(t, err)
			w.unchanged(before, "planned")
			done, err := w.attach(c.want, nil)
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

// A device whose container died is back in the first namespace under another
// name: here the kernel does as much by hand, since what it has are no cards.
func TestCardComesBackByItself(t *testing.T) {
	w := newWorld(t)
	w.repair()
	before := w.snapshot()
	_, err := w.attach(attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7", Addresses: prefixes("192.0.2.10/24")}, nil)
	must(t, err)
	must(t, find(t, w.web, "eth7").Move(w.host, ""))
	must(t, w.detach("eth7", nil))
	w.unchanged(before, "the card is back")
}

// A card whose name somebody took comes back under another.
func TestCardsNameIsTaken(t *testing.T) {
	w := newWorld(t)
	_, err := w.attach(attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7"}, nil)
	must(t, err)
	_, err = link.Create(w.host, link.VethSpec{Attrs: link.Attrs{Name: "nic"}, Peer: link.Attrs{Name: "other"}}, link.Target{})
	must(t, err)
	must(t, w.detach("eth7", nil))
	back := find(t, w.host, "eth7")
	all, err := handle(t, w.host).AddrList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: back.Index()}}, netlink.FAMILY_V4)
	must(t, err)
	if len(all) != 1 || !all[0].IP.Equal(netip.MustParseAddr("198.51.100.1").AsSlice()) {
		t.Errorf("it has the addresses %v", all)
	}
}

// startRooted starts a process in a namespace whose root is another directory, and
// returns its id.
func startRooted(t *testing.T, ns *netns.NS, root string) int {
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
		t.Fatalf("the process says nothing: %v", err)
	}
	return cmd.Process.Pid
}

// A link that somebody gives another name in the container is still the one that
// was attached: its old name is not free, and detaching finds it.
func TestRenamedLinkIsStillAttached(t *testing.T) {
	w := newWorld(t)
	want := attach.Spec{Kind: "bridge", Parent: "br0"}
	_, err := w.attach(want, nil)
	must(t, err)
	h := handle(t, w.web)
	l, err := h.LinkByName("eth0")
	must(t, err)
	must(t, h.LinkSetDown(l))
	must(t, h.LinkSetName(l, "mine"))
	got, err := w.attach(want, nil)
	must(t, err)
	if name := got.Attachment.Spec.Name; name != "eth1" {
		t.Errorf("the next is called %s, want eth1", name)
	}
	want.Name = "eth0"
	var taken *attach.TakenError
	if _, err := w.attach(want, nil); !errors.As(err, &taken) || taken.Holder == nil || taken.Owner != "an attachment of web" {
		t.Errorf("attached under the old name again: %v", err)
	}
	must(t, w.detach("eth0", nil))
	if _, err := link.Find(w.web, "mine"); err == nil {
		t.Error("detached, but the link is there")
	}
}

// What is wanted of a container that ended is wanted still when attaching it anew
// is killed.
func TestWantedSurvivesAnew(t *testing.T) {
	w := newWorld(t)
	want := w.beginsAnew()
	before := w.list()[0].Attachment
	for k := 0; ; k++ {
		_, err := w.attach(want, stopAt(k))
		w.repair()
		if err == nil {
			return
		}
		if all := w.list(); len(all) != 1 || all[0].Container != before.Container {
			t.Fatalf("killed at point %d, listed: %+v", k, all)
		}
	}
}
