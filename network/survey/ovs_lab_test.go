package survey_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/network/survey"
)

// TestSwitch surveys a real Open vSwitch, which works in user space if the kernel lacks the module.
func TestSwitch(t *testing.T) {
	lab.Need(t)
	host, web := node(t, "host"), node(t, "web")
	o, err := link.StartOVS(t.Context(), host.NS, filepath.Join(t.TempDir(), "ovs"))
	var lack *link.Lack
	if errors.As(err, &lack) {
		t.Skip(lack)
	}
	must(t, err)
	t.Cleanup(func() { o.Close() })
	bridge := link.OVSBridgeSpec{Attrs: link.Attrs{Name: "sw0"}, DB: o.DB()}
	if link.Probe("openvswitch") != nil {
		bridge.DatapathType = link.OVSNetdev
	}
	_, err = link.Create(host.NS, bridge, link.Target{})
	must(t, err)
	must(t, lab.Connect(lab.End{Node: host, Name: "port0"}, lab.End{Node: web, Name: "eth0"}, lab.Cable{}))
	_, err = link.Create(host.NS, link.OVSPortSpec{Attrs: link.Attrs{Name: "port0"}, Bridge: "sw0", DB: o.DB(), Tag: 100}, link.Target{})
	must(t, err)
	_, err = link.Create(host.NS, link.OVSPortSpec{Attrs: link.Attrs{Name: "own0"}, Bridge: "sw0", DB: o.DB(), Type: link.OVSInternalPort}, link.Target{})
	must(t, err)

	s := take(t, survey.Config{OVSSocket: strings.TrimPrefix(o.DB(), "unix:")})
	sw := find(t, s, host, "sw0")
	if sw.Kind != "openvswitch" || sw.Detail != "bridge" || len(sw.Ports) != 0 {
		t.Errorf("the bridge is %+v", sw)
	}
	if p := find(t, s, host, "port0"); p.Master != sw.Index || p.Detail != "VLAN 100" {
		t.Errorf("port0 is %+v, want master %d", p, sw.Index)
	}
	if p := find(t, s, host, "own0"); p.Master != sw.Index || p.Detail != "port" || p.Kind != "openvswitch" {
		t.Errorf("own0 is %+v, the bridge is %d", p, sw.Index)
	}
}
