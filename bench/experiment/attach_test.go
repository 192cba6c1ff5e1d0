package experiment

import (
	"fmt"
	"slices"
	"strings"
	"testing"

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

func TestAttachDependsOnLinkAndEndpointsOnly(t *testing.T) {
	e := attachGroup("cleat-attach", Attach, map[string][]string{"link": {"bridge", "macvlan"}, "endpoints": {"1", "2"}})
	e.Groups[0].MTU, e.Groups[0].Pairs, e.Groups[0].Streams = []int{1500, 9000}, []int{1, 2}, []int{1, 2}
	if n := len(e.Jobs()); n != 4 {
		t.Errorf("%d jobs, want 4", n)
	}
	for _, n := range catalog.All() {
		if n.Role == catalog.Attacher && !n.RootLab {
			t.Errorf("the catalogue does not say that %s needs root", n.Name)
		}
	}
}
