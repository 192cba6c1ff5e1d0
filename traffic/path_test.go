package traffic_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/traffic"
)

// switched returns two nodes with a switch between them whose ports carry only mtu bytes,
// while the nodes' MTU is 1500. Segmentation offload is off, since a bridge forwards
// super-packets of any size.
func switched(t *testing.T, mtu int) (client, server *lab.Node) {
	t.Helper()
	lab.Need(t)
	sw, err := lab.NewSwitch("switch", 1500)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sw.Close() })
	nodes := make([]*lab.Node, 2)
	for i, name := range []string{"client", "server"} {
		n, err := lab.NewNode(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		nodes[i] = n
		port, err := sw.Plug(lab.End{Node: n, Name: "eth0"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Address("eth0", netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1))); err != nil {
			t.Fatal(err)
		}
		l, err := link.Find(n.NS, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		for _, offload := range []string{"tso", "gso"} {
			if err := l.SetOffload(offload, false); err != nil {
				t.Fatal(err)
			}
		}
		p, err := link.Find(sw.NS, port)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.SetMTU(mtu); err != nil {
			t.Fatal(err)
		}
	}
	return nodes[0], nodes[1]
}

// A device forwards frames that exceed its MTU by up to a VLAN tag of 4 bytes
// (is_skb_forwardable in net/core/dev.c): 1404 where the MTU is 1400.
func TestProbePaths(t *testing.T) {
	tests := []struct {
		name   string
		lay    func(t *testing.T) (client, server *lab.Node)
		listen string
		want   traffic.Result // LinkMTU, PathMTU, BlackHole
		failed bool
	}{
		{"MTU 1500", func(t *testing.T) (*lab.Node, *lab.Node) {
			c, s, _ := cable(t, lab.Cable{})
			return c, s
		}, "192.0.2.2:5210", traffic.Result{LinkMTU: 1500, PathMTU: 1500}, false},
		{"MTU 9000", func(t *testing.T) (*lab.Node, *lab.Node) {
			c, s, _ := cable(t, lab.Cable{MTU: 9000})
			return c, s
		}, "192.0.2.2:5210", traffic.Result{LinkMTU: 9000, PathMTU: 9000}, false},
		{"the far end takes less, and says so in its MSS", func(t *testing.T) (*lab.Node, *lab.Node) {
			c, s, _ := cable(t, lab.Cable{})
			l, err := link.Find(s.NS, "eth0")
			if err == nil {
				err = l.SetMTU(1400)
			}
			if err != nil {
				t.Fatal(err)
			}
			return c, s
		}, "192.0.2.2:5210", traffic.Result{LinkMTU: 1500, PathMTU: 1404}, false},
		{"a switch takes less, and nobody says so", func(t *testing.T) (*lab.Node, *lab.Node) {
			return switched(t, 1400)
		}, "192.0.2.2:5210", traffic.Result{LinkMTU: 1500, PathMTU: 1404, BlackHole: true}, true},
		{"nobody answers", func(t *testing.T) (*lab.Node, *lab.Node) {
			c, s, _ := cable(t, lab.Cable{})
			return c, s
		}, "127.0.0.1:5210", traffic.Result{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, server := tt.lay(t)
			control := "unix:" + filepath.Join(t.TempDir(), "c")
			child{CPU: -1, Address: tt.listen, Control: control}.server(t, server)
			to := "192.0.2.2:5210"
			if tt.failed && tt.want.LinkMTU == 0 {
				to = "192.0.2.99:5210" // no such neighbour
			}
			r, err := child{CPU: -1, Work: traffic.Probe, Address: to, Control: control}.client(t, client)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want.LinkMTU != 0 && (r.LinkMTU != tt.want.LinkMTU || r.PathMTU != tt.want.PathMTU) || r.BlackHole != tt.want.BlackHole {
				t.Errorf("link MTU %d, path MTU %d, black hole %v; want %d, %d, %v",
					r.LinkMTU, r.PathMTU, r.BlackHole, tt.want.LinkMTU, tt.want.PathMTU, tt.want.BlackHole)
			}
			if (r.ProbeError != "") != tt.failed {
				t.Errorf("probe error %q, want one: %v", r.ProbeError, tt.failed)
			}
			if r.DurationSeconds > 4 { // about 2 s on a loaded machine
				t.Errorf("the probe took %g s", r.DurationSeconds)
			}
		})
	}
}

// The thesis's datagrams: 8 KiB at MTU 1500, six fragments each.
func TestFragmentedDatagrams(t *testing.T) {
	client, server, address := cable(t, lab.Cable{})
	control := "unix:" + filepath.Join(t.TempDir(), "c")
	child{CPU: -1, Address: address + ":5210", Control: control}.server(t, server)
	r, err := child{CPU: -1, Work: traffic.UDP, Address: address, Control: control, MessageBytes: 8192, BitsPerSecond: 20e6}.client(t, client)
	if err != nil {
		t.Fatal(err)
	}
	lossless(t, r)
	_, err = child{CPU: -1, Work: traffic.UDP, Address: address, Control: control, MessageBytes: 8192, GSO: true}.client(t, client)
	if err == nil || !strings.Contains(err.Error(), "UDP_SEGMENT") {
		t.Errorf("segments longer than the MTU: %v, want an error that names UDP_SEGMENT", err)
	}
}

// Loss is counted: a flood into a link of 10 Mbit/s.
func TestLossIsCounted(t *testing.T) {
	client, server, address := cable(t, lab.Cable{RateBitsPerSec: 10e6})
	control := "unix:" + filepath.Join(t.TempDir(), "c")
	child{CPU: -1, Address: address + ":5210", Control: control}.server(t, server)
	r, err := child{CPU: -1, Work: traffic.UDP, Address: address, Control: control, BitsPerSecond: 50e6, Duration: 300 * time.Millisecond}.client(t, client)
	if err != nil {
		t.Fatal(err)
	}
	if r.Lost == 0 || r.Lost+r.PacketsReceived-r.Duplicated != r.PacketsSent {
		t.Errorf("sent %d, received %d, lost %d, duplicated %d", r.PacketsSent, r.PacketsReceived, r.Lost, r.Duplicated)
	}
	if r.BitsPerSecond > 20e6 {
		t.Errorf("%g bit/s through a link of 10 Mbit/s", r.BitsPerSecond)
	}
}

// A test over a path that drops everything ends with an error.
func TestDeadPath(t *testing.T) {
	client, server, _ := cable(t, lab.Cable{})
	control := "unix:" + filepath.Join(t.TempDir(), "c")
	child{CPU: -1, Address: "127.0.0.1:5210", Control: control}.server(t, server)
	for _, w := range []traffic.Work{traffic.UDP, traffic.UDPRR} {
		_, err := child{CPU: -1, Work: w, Address: "192.0.2.99", Control: control}.client(t, client)
		if err == nil || !strings.Contains(err.Error(), "UDP") {
			t.Errorf("%s: %v, want an error that names UDP", w, err)
		}
	}
}
