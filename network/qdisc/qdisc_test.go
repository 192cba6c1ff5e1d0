package qdisc_test

import (
	"errors"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/qdisc"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// device returns a device in a namespace of its own.
func device(t *testing.T) *link.Link {
	t.Helper()
	lab.Need(t)
	ns, err := netns.New("host")
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	l, err := link.Create(ns, link.VethSpec{Attrs: link.Attrs{Name: "nic"}, Peer: link.Attrs{Name: "wire"}}, link.Target{})
	must(t, err)
	return l
}

// tc runs tc commands in the namespace of l. It skips the test where the kernel lacks a
// kind.
func tc(t *testing.T, l *link.Link, lines ...string) {
	t.Helper()
	for _, line := range lines {
		var stderr strings.Builder
		cmd := exec.Command("tc", strings.Fields(line)...)
		cmd.Stderr = &stderr
		err := l.NS().Start(cmd)
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip(err)
		}
		must(t, err)
		if err := cmd.Wait(); err != nil {
			if strings.Contains(stderr.String(), "kind is unknown") {
				t.Skipf("the kernel lacks it: tc %s", line)
			}
			t.Fatalf("tc %s: %s", line, stderr.String())
		}
	}
}

// A tree with classes, an inner queueing discipline and filters is restored as it was.
func TestRestore(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
	}{
		{"classless", []string{"qdisc add dev nic root handle 1: tbf rate 50mbit burst 30k latency 10ms"}},
		{"classful", []string{
			"qdisc add dev nic root handle 1: htb default 10",
			"class add dev nic parent 1: classid 1:1 htb rate 100mbit",
			"class add dev nic parent 1:1 classid 1:10 htb rate 20mbit ceil 100mbit prio 3",
			"qdisc add dev nic parent 1:10 handle 7: tbf rate 1mbit burst 30k latency 10ms",
			"filter add dev nic parent 1: protocol ip prio 9 u32 match ip dport 80 0xffff flowid 1:10",
			"filter add dev nic parent 1: protocol ip prio 8 u32 match ip dport 81 0xffff flowid 1:1",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := device(t)
			if tree, lost, err := qdisc.Save(l.NS(), l.Index()); tree != nil || lost != nil || err != nil {
				t.Errorf("the kernel's default: %v, %v, %v", tree, lost, err)
			}
			tc(t, l, c.lines...)
			tree, lost, err := qdisc.Save(l.NS(), l.Index())
			if tree == nil || lost != nil || err != nil {
				t.Fatalf("saved: %v, %v, %v", tree, lost, err)
			}
			tc(t, l, "qdisc del dev nic root")
			for range 2 { // restoring twice is harmless
				must(t, tree.Restore(l.NS(), l.Index()))
				again, _, err := qdisc.Save(l.NS(), l.Index())
				must(t, err)
				if !reflect.DeepEqual(tree, again) {
					t.Errorf("restored %+v, want %+v", again, tree)
				}
			}
		})
	}
}

// What can't be restored is reported with the kinds on the device.
func TestLost(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		kinds []string
	}{
		{"size table", []string{"qdisc add dev nic root handle 1: stab overhead 30 linklayer ethernet tbf rate 1mbit burst 2k latency 10ms"}, []string{"tbf"}},
		{"filters without classes", []string{"qdisc add dev nic root handle 1: sfq", "filter add dev nic parent 1: protocol ip u32 match ip dport 80 0xffff flowid 1:1"}, []string{"sfq"}},
		{"ingress", []string{"qdisc add dev nic root handle 1: htb", "qdisc add dev nic ingress"}, []string{"htb", "ingress"}},
		{"filter with an action", []string{"qdisc add dev nic root handle 1: htb", "filter add dev nic parent 1: protocol ip u32 match ip dport 80 0xffff action mirred egress redirect dev wire"}, []string{"htb"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := device(t)
			tc(t, l, c.lines...)
			tree, lost, err := qdisc.Save(l.NS(), l.Index())
			slices.Sort(lost)
			if tree != nil || !slices.Equal(lost, c.kinds) || err != nil {
				t.Errorf("got %v, %v, %v", tree, lost, err)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
