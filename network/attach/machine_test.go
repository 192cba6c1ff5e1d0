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
	"cleat/network/networktest"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ownMachineEnv says that the test has the machine for itself: the machine has network
// cards, and kernel parameters may be changed. The guests of the vm tier set it.
const ownMachineEnv = "CLEAT_TEST_ALONE"

// machineTestbed returns a testbed whose host is the machine itself.
func machineTestbed(t *testing.T) *testbed {
	t.Helper()
	if os.Getenv(ownMachineEnv) == "" {
		t.Skip("needs a machine of its own, as in the vm tier")
	}
	host, err := netns.Current()
	must(t, err)
	t.Cleanup(func() { host.Close() })
	tb := &testbed{t: t, host: host, web: networktest.NewNS(t, "web"), outside: networktest.NewNS(t, "outside"), state: filepath.Join(t.TempDir(), "state")}
	tb.store, err = attach.OpenStore(tb.state)
	must(t, err)
	tb.container = attach.Container{Ref: "web", Engine: "test", Name: "web", Path: tb.web.Path()}
	return tb
}

// cards returns the names of the devices that have a hardware driver.
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

// TestPhysicalCard gives a network card to a container, and gets it back by detaching and
// by the container's end. In the latter case the kernel moves it back to the initial
// namespace with the name it had in the container.
func TestPhysicalCard(t *testing.T) {
	tb := machineTestbed(t)
	all := cards(t)
	if len(all) != 2 {
		t.Fatalf("the machine has the cards %q, want two", all)
	}
	card, far := find(t, tb.host, all[0]), find(t, tb.host, all[1])
	must(t, far.Move(tb.outside, "wire"))
	must(t, far.Up())
	must(t, far.AddAddr(netip.MustParsePrefix("192.0.2.9/24")))
	sysctl(t, tb.host, "net/ipv6/conf/"+all[0]+"/addr_gen_mode", "1") // IN6_ADDR_GEN_MODE_NONE
	sysctl(t, tb.host, "net/ipv6/conf/default/addr_gen_mode", "1")
	must(t, card.SetMTU(1400))
	must(t, card.AddAddr(netip.MustParsePrefix("198.51.100.1/24")))
	must(t, card.Up())
	to, err := netlink.ParseIPNet("203.0.113.0/24")
	must(t, err)
	must(t, handle(t, tb.host).RouteAdd(&netlink.Route{LinkIndex: card.Index(), Dst: to, Gw: netip.MustParseAddr("198.51.100.9").AsSlice()}))
	waitUp(t, tb.host, all[0])
	tb.repair()
	before := tb.snapshot()
	spec := attach.Spec{Kind: "phys", Parent: all[0], Name: "eth7", Addresses: prefixes("192.0.2.10/24"), MTU: 1300, MAC: link.MAC{2, 0, 0x5e, 0x10, 0, 7}}
	answers := func(t *testing.T) { // a subtest, because its end closes the socket, which keeps the namespace alive
		server := labtest.Serve(t, tb.web, "192.0.2.10:0", labtest.Reply("hello"))
		must(t, tb.outside.Do(func() error {
			c, err := net.DialTimeout("tcp", server.String(), 20*time.Second)
			if err == nil {
				c.Close()
			}
			return err
		}))
	}

	_, err = tb.attach(spec, nil)
	must(t, err)
	t.Run("answers", answers)
	must(t, tb.detach("eth7", nil))
	tb.unchanged(before, "detached")

	_, err = tb.attach(spec, nil)
	must(t, err)
	t.Run("answers again", answers)
	must(t, tb.web.Close())
	tb.container.Path = ""
	waitUntil(t, "the card did not come back", func() bool { return slices.Contains(cards(t), "eth7") })
	if all := tb.list(); len(all) != 1 || all[0].State != attach.Gone {
		t.Errorf("listed: %+v", all)
	}
	must(t, tb.detach("eth7", nil))
	tb.web = networktest.NewNS(t, "web")
	tb.unchanged(before, "the container has ended")
}

// waitUntil waits up to 30 seconds, because a guest is slow.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// TestNeighbourTable fills the neighbour table, which all namespaces share. A container
// attached then can't be reached, until the sysctl from the note is set.
func TestNeighbourTable(t *testing.T) {
	tb := machineTestbed(t)
	const most = "net/ipv4/neigh/default/gc_thresh3"
	was, err := os.ReadFile("/proc/sys/" + most)
	must(t, err)
	t.Cleanup(func() { os.WriteFile("/proc/sys/"+most, was, 0) })
	sysctl(t, tb.host, most, "64")
	crowd, err := link.Create(tb.host, link.BridgeSpec{Attrs: link.Attrs{Name: "crowd0"}}, link.Target{})
	must(t, err)
	t.Cleanup(func() { crowd.Close() })
	must(t, crowd.Up())
	h := handle(t, tb.host)
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
	got, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true}, nil)
	must(t, err)
	t.Cleanup(func() { tb.detach("eth0", nil) })
	notes := strings.Join(got.Notes, "\n")
	t.Log(notes)
	typed := regexp.MustCompile(`has 6\d of at most 64 entries and was full \d+ times; .*sysctl -w net\.ipv4\.neigh\.default\.gc_thresh3=(\d+)`).FindStringSubmatch(notes)
	if typed == nil {
		t.Fatalf("notes: %q", got.Notes)
	}
	server := labtest.Serve(t, tb.web, "192.0.2.10:0", labtest.Reply("hello"))
	reach := func() error {
		c, err := net.DialTimeout("tcp", server.String(), 5*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := reach(); err == nil {
		t.Error("a new neighbour is reached though the table is full")
	} else {
		t.Log(fmt.Sprint("while the table is full: ", err))
	}
	sysctl(t, tb.host, most, typed[1])
	must(t, reach())
}
