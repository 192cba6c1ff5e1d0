package experiment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/catalog"
)

// TestWireMeasuresItsGoals checks that the preset measures every attacher, link kind and
// number of endpoints.
func TestWireMeasuresItsGoals(t *testing.T) {
	e := load(t, "wire")
	if e.Subject != "cleat-attach" || e.Repeat < 10 {
		t.Errorf("subject %q, %d blocks", e.Subject, e.Repeat)
	}
	var got []string
	for _, j := range e.Jobs() {
		if j.Work.Kind == Attach {
			got = append(got, fmt.Sprintf("%s %s %s", j.Cell.Network, j.Cell.Factors[linkFactor], j.Cell.Factors[endpointsFactor]))
		}
	}
	slices.Sort(got)
	want := []string{
		"cleat-attach bridge 1", "cleat-attach bridge 500", "cleat-attach macvlan 1",
		"cleat-keeper bridge 1", "cleat-keeper bridge 500", "cleat-keeper macvlan 1",
		"cni-plugins bridge 1", "cni-plugins bridge 500", "cni-plugins macvlan 1",
		"docker-connect bridge 1", "docker-connect macvlan 1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// attachGroup returns an experiment with one group, of one network.
func attachGroup(network, work string, factors map[string][]string) Experiment {
	return Experiment{Name: "x", Repeat: 1, Groups: []Group{{Networks: []string{network}, Work: []Work{{Kind: work}}, Factors: factors}}}
}

func TestAttachersOnlyAttach(t *testing.T) {
	for _, tt := range []struct {
		network, work string
		factors       map[string][]string
		want          string // "": valid
	}{
		{"cleat-attach", Attach, nil, ""},
		{"cleat-attach", Attach, map[string][]string{"endpoints": {"1023"}, "link": {"macvlan"}}, ""},
		{"cleat-attach", Setup, nil, "only attach applies"},
		{"veth", Attach, nil, "attach does not apply"},
		{"cleat-attach", Attach, map[string][]string{"endpoints": {"1024"}}, "want 1…1023"},
		{"cleat-attach", Attach, map[string][]string{"endpoints": {"many"}}, "want 1…1023"},
		{"cleat-attach", Attach, map[string][]string{"link": {"ipvlan"}}, `unknown link "ipvlan"`},
		{"docker-connect", Attach, map[string][]string{"endpoints": {"500"}}, "only the first endpoint is measured"},
	} {
		err := attachGroup(tt.network, tt.work, tt.factors).Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s %v: %v, want %q", tt.network, tt.work, tt.factors, err, tt.want)
		}
	}
}

// TestNamedNetworkRules checks which work is measured on named networks.
func TestNamedNetworkRules(t *testing.T) {
	counts := func(endpoints, ports, parallel string) map[string][]string {
		f := map[string][]string{"endpoints": {endpoints}}
		if ports != "" {
			f["ports"] = []string{ports}
		}
		if parallel != "" {
			f["parallel"] = []string{parallel}
		}
		return f
	}
	for _, tt := range []struct {
		network, work string
		factors       map[string][]string
		want          string // "": valid
	}{
		{"cleat-bridge", Attach, counts("1000", "", ""), ""},
		{"cleat-bridge", Burst, counts("1", "", "500"), ""},
		{"cleat-bridge", Burst, counts("1", "", "501"), "want 1…500"},
		{"cleat-bridge", Burst, counts("1000", "", "100"), "a bridge has at most 1023 endpoints"},
		{"cleat-bridge", Memory, counts("1000", "500", ""), ""},
		{"cleat-bridge", Memory, counts("10", "11", ""), "as many ports as endpoints at most"},
		{"cleat-bridge", Setup, nil, "setup does not apply"},
		{"cleat-bridge", Start, nil, "start does not apply"},
		{"cni-bridge", Memory, nil, "none of its programs keeps running"},
		{"docker-bridge", Attach, counts("101", "", ""), "at most 100 endpoints are measured"},
		{"docker-bridge", Burst, counts("1", "", "100"), ""},
		{"docker-bridge", Burst, counts("2", "", "100"), "at most 100 endpoints are measured"},
		{"cleat-attach", Burst, nil, "only attach applies"},
		{"veth", Burst, nil, "burst is measured on named networks only"},
		{"cleat-overlay", Attach, counts("1000", "", ""), ""},
		{"docker-overlay", Attach, counts("100", "", ""), ""},
		{"docker-overlay", Attach, counts("101", "", ""), "at most 100 endpoints are measured"},
		{"bird-routes", Burst, nil, "burst is measured on named networks only"},
		{"vxlan", Attach, nil, "attach does not apply"},
	} {
		err := attachGroup(tt.network, tt.work, tt.factors).Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s %v: %v, want %q", tt.network, tt.work, tt.factors, err, tt.want)
		}
	}
}

// TestTrafficOfNamedNetworks checks the direction of traffic, and which cells have ports.
func TestTrafficOfNamedNetworks(t *testing.T) {
	e := attachGroup("docker-bridge", "crr", map[string][]string{"peer": {"container", "outside", "host-loopback", "hairpin", "masquerade"}, "ports": {"1", "100", "1000"}})
	e.Groups[0].Work[0].Duration = time.Second
	var got []string
	for _, j := range e.Jobs() {
		got = append(got, fmt.Sprintf("%s %s %s", j.Cell.Factors[peerFactor], j.Cell.Direction, j.Cell.Factors[portsFactor]))
	}
	want := []string{"container between ", "outside inbound 1", "outside inbound 100", "host-loopback inbound 1", "host-loopback inbound 100", "hairpin between 1", "hairpin between 100", "masquerade outbound "}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, tt := range []struct {
		name string
		g    Group
		want string
	}{
		{"the MTU", Group{Networks: []string{"cleat-bridge"}, MTU: []int{9000}, Work: []Work{{Kind: "tcp", Duration: time.Second}}}, "its engine chooses the MTU"},
		{"a second node", Group{Networks: []string{"cleat-bridge"}, Topologies: []string{"switched"}, Work: []Work{{Kind: "tcp", Duration: time.Second}}}, "it exists within one node"},
		{"a rootless container's neighbour", Group{Networks: []string{"pasta"}, Work: []Work{{Kind: "rr", Duration: time.Second}}, Factors: map[string][]string{"peer": {"container"}}}, "peer container does not apply"},
		{"a rootless container's published port", Group{Networks: []string{"pasta"}, Work: []Work{{Kind: "rr", Duration: time.Second}}, Factors: map[string][]string{"peer": {"hairpin"}}}, "peer hairpin does not apply"},
	} {
		err := Experiment{Name: "x", Repeat: 1, Groups: []Group{tt.g}}.Validate()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestNetworksMeasuresItsGoals checks that the preset compares every named network in what
// it is good for.
func TestNetworksMeasuresItsGoals(t *testing.T) {
	e := load(t, "networks")
	if e.Subject != "cleat-bridge" || e.Repeat < 10 {
		t.Errorf("subject %q, %d blocks", e.Subject, e.Repeat)
	}
	measured := map[string]bool{}
	for _, j := range e.Jobs() {
		f := j.Cell.Factors
		measured[strings.Join([]string{j.Cell.Network, j.Work.Kind, f[endpointsFactor] + f[peerFactor], f[parallelFactor] + f[portsFactor]}, " ")] = true
	}
	for _, n := range catalog.All() {
		if n.Role != catalog.Named {
			continue
		}
		want := []string{"attach 1 ", "burst 1 20", "tcp  ", "rr  ", "crr  ", "packets  ", "packets masquerade ", "packets hairpin 1", "packets outside 1", "crr outside 1", "crr host-address 1", "crr host-loopback 1", "crr outside 100"}
		if strings.HasPrefix(n.Name, "cleat-") {
			want = append(want, "attach 1000 ", "burst 1 100", "crr outside 10000", "memory 1000 500")
		}
		switch n.Name { // their packets take the way of cleat-bridge's
		case "cleat-cni", "cleat-netavark", "cleat-docker":
			want = []string{"attach 1 ", "attach 2 ", "attach 200 ", "attach 1000 ", "burst 1 20", "burst 1 100"}
		case "cleat-docker-direct": // once many are connected, it is as cleat-docker
			want = []string{"attach 1 ", "attach 2 "}
		}
		for _, w := range want {
			if !measured[n.Name+" "+w] {
				t.Errorf("%s: %q is not measured", n.Name, w)
			}
		}
	}
}

func TestAttachDependsOnLinkAndEndpointsOnly(t *testing.T) {
	e := attachGroup("cleat-attach", Attach, map[string][]string{"link": {"bridge", "macvlan"}, "endpoints": {"1", "2"}})
	e.Groups[0].MTU, e.Groups[0].Pairs, e.Groups[0].Streams = []int{1500, 9000}, []int{1, 2}, []int{1, 2}
	if n := len(e.Jobs()); n != 4 {
		t.Errorf("%d jobs, want 4", n)
	}
	for _, n := range catalog.All() {
		if (n.Role == catalog.Attacher || n.Role == catalog.Named) && !n.RootLab {
			t.Errorf("the catalogue does not say that %s needs root", n.Name)
		}
	}
}
