package attach_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab/labtest"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// aloneEnv says that the machine is the test's own: it has cards, and parameters of
// the kernel's may be set. The vm tier's guests say so.
const aloneEnv = "CLEAT_TEST_ALONE"

// alone is a world whose host is the machine itself.
func alone(t *testing.T) *world {
	t.Helper()
	if os.Getenv(aloneEnv) == "" {
		t.Skip("it needs a machine of its own: the vm tier has one")
	}
	host, err := netns.Current()
	must(t, err)
	t.Cleanup(func() { host.Close() })
	w := &world{t: t, host: host, web: newNS(t, "web"), outside: newNS(t, "outside"), state: filepath.Join(t.TempDir(), "state")}
	w.store, err = attach.OpenStore(w.state)
	must(t, err)
	w.container = attach.Container{Ref: "web", Engine: "test", Name: "web", Path: w.web.Path()}
	return w
}

// cards are the names of the devices that a driver of hardware has made.
func cards(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/class/net/*/device")
	must(t, err)
	var names []string
	for _, path := range all {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	slices.Sort(names)
	return names
}

// TestCard gives a real card away and has it back, by hand and by the container's
// end: then it is the kernel that puts it into its first namespace, as it was made.
func TestCard(t *testing.T) {
	w := alone(t)
	all := cards(t)
	if len(all) != 2 {
		t.Fatalf("the machine has the cards %q, want 2", all)
	}
	card, far := find(t, w.host, all[0]), find(t, w.host, all[1])
	must(t, far.Move(w.outside, "wire"))
	must(t, far.Up())
	must(t, far.AddAddr(netip.MustParsePrefix("192.0.2.9/24")))
	sysctl(t, w.host, "net/ipv6/conf/"+all[0]+"/addr_gen_mode", "1") // none
	sysctl(t, w.host, "net/ipv6/conf/default/addr_gen_mode", "1")
	must(t, card.SetMTU(1400))
	must(t, card.AddAddr(netip.MustParsePrefix("198.51.100.1/24")))
	must(t, card.Up())
	to, err := netlink.ParseIPNet("203.0.113.0/24")
	must(t, err)
	must(t, handle(t, w.host).RouteAdd(&netlink.Route{LinkIndex: card.Index(), Dst: to, Gw: netip.MustParseAddr("198.51.100.9").AsSlice()}))
	eventuallyUp(t, w.host, all[0])
	w.repair()
	before := w.snapshot()
	want := attach.Spec{Kind: "phys", Parent: all[0], Name: "eth7", Addresses: prefixes("192.0.2.10/24"), MTU: 1300, MAC: link.MAC{2, 0, 0x5e, 0x10, 0, 7}}
	answers := func(t *testing.T) { // whose end closes the socket, which keeps the namespace
		server := labtest.Serve(t, w.web, "192.0.2.10:0", labtest.Reply("hello"))
		must(t, w.outside.Do(func() error {
			c, err := net.DialTimeout("tcp", server.String(), 20*time.Second)
			if err == nil {
				c.Close()
			}
			return err
		}))
	}

	_, err = w.attach(want, nil)
	must(t, err)
	t.Run("answers", answers)
	must(t, w.detach("eth7", nil))
	w.unchanged(before, "detached")

	_, err = w.attach(want, nil)
	must(t, err)
	t.Run("answers again", answers)
	must(t, w.web.Close())
	w.container.Path = ""
	waitFor(t, "the card is not back", func() bool { return slices.Contains(cards(t), "eth7") })
	if all := w.list(); len(all) != 1 || all[0].State != attach.Gone {
		t.Errorf("listed: %+v", all)
	}
	must(t, w.detach("eth7", nil))
	w.web = newNS(t, "web")
	w.unchanged(before, "the container has ended")
}

// waitFor waits up to half a minute, as a guest is slow.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// TestNeighbourTable fills the table that all namespaces share: what is attached
// then can't be reached, and what the note says to type mends that.
func TestNeighbourTable(t *testing.T) {
	w := alone(t)
	const most = "net/ipv4/neigh/default/gc_thresh3"
	was, err := os.ReadFile("/proc/sys/" + most)
	must(t, err)
	t.Cleanup(func() { os.WriteFile("/proc/sys/"+most, was, 0) })
	sysctl(t, w.host, most, "64")
	crowd, err := link.Create(w.host, link.BridgeSpec{Attrs: link.Attrs{Name: "crowd0"}}, link.Target{})
	must(t, err)
	t.Cleanup(func() { crowd.Close() })
	must(t, crowd.Up())
	h := handle(t, w.host)
	for i := range 100 {
		err = h.NeighAdd(&netlink.Neigh{LinkIndex: crowd.Index(), Family: unix.AF_INET, State: netlink.NUD_REACHABLE,
			IP: net.IPv4(203, 0, 113, byte(i)), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}})
		if err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("the table is not full: %v", err)
	}
	got, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true}, nil)
	must(t, err)
	t.Cleanup(func() { w.detach("eth0", nil) })
	notes := strings.Join(got.Notes, "\n")
	t.Log(notes)
	typed := regexp.MustCompile(`has 6\d of at most 64 entries and was full \d+ times; .*sysctl -w net\.ipv4\.neigh\.default\.gc_thresh3=(\d+)`).FindStringSubmatch(notes)
	if typed == nil {
		t.Fatalf("notes: %q", got.Notes)
	}
	server := labtest.Serve(t, w.web, "192.0.2.10:0", labtest.Reply("hello"))
	reach := func() error {
		c, err := net.DialTimeout("tcp", server.String(), 5*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := reach(); err == nil {
		t.Error("a new neighbour is found though the table is full")
	} else {
		t.Log(fmt.Sprint("while it is full: ", err))
	}
	sysctl(t, w.host, most, typed[1])
	must(t, reach())
}
