package bench

import (
	"errors"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/remote"
	"cleat/bench/wiring"
	"cleat/link"
)

// threeMachines returns three machines that nobody has connected to.
func threeMachines() *Machines {
	m := &Machines{lacks: map[string]map[string]error{}, paths: map[[2]string]path{}}
	for _, host := range []string{"a", "b", "c"} {
		one := Machine{Node: &remote.Node{Address: remote.Address{Host: host}}}
		m.all, m.names = append(m.all, one), append(m.names, host)
	}
	return m
}

func TestMachinesLack(t *testing.T) {
	none := func(reason string) map[string]error {
		return map[string]error{"geneve": &link.Lack{What: "geneve", Reason: reason, Remedy: "modprobe"}}
	}
	m := threeMachines()
	m.lacks["ssh://b"], m.lacks["ssh://c"] = none("no module"), none("too old")
	for _, tt := range []struct {
		name          string
		first, second int
		network, want string
	}{
		{"nothing", 0, 1, "vxlan", ""},
		{"one", 0, 1, "geneve", "b: geneve: no module (modprobe)"},
		{"another one", 0, 2, "geneve", "c: geneve: too old (modprobe)"},
		{"both", 1, 2, "geneve", "b: geneve: no module; c: geneve: too old (modprobe)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := m.lack(tt.network, m.all[tt.first], m.all[tt.second])
			if got := ""; err != nil {
				got = err.Error()
				if got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			} else if tt.want != "" {
				t.Errorf("nothing is lacking, want %q", tt.want)
			}
		})
	}
	m.lacks["ssh://c"] = m.lacks["ssh://b"]
	if err := m.lack("geneve", m.all[1], m.all[2]); err == nil || !strings.HasPrefix(err.Error(), "b and c: ") {
		t.Errorf("the same reason twice: %v", err)
	}
}

func TestMachinesRuleOut(t *testing.T) {
	m := threeMachines()
	job := func(kind, network, topology, placement string) experiment.Job {
		return experiment.Job{Work: experiment.Work{Kind: kind}, Cell: cell.Cell{Network: network, Topology: topology, Placement: placement, Pairs: 1,
			Factors: map[string]string{experiment.BetweenFactor: "a and b"}}}
	}
	for _, tt := range []struct {
		name string
		job  experiment.Job
		want bool
	}{
		{"a tunnel", job("tcp", "vxlan", "switched", "different-cores"), true},
		{"no traffic", job("setup", "vxlan", "switched", "different-cores"), false},
		{"one core", job("tcp", "vxlan", "switched", "same-core"), false},
		{"one host", job("tcp", "bridge", "local", "different-cores"), false},
		{"a device that nobody named", job("tcp", "macvlan-bridge", "switched", "different-cores"), false},
		{"the path that exists", job("tcp", "existing-path", "switched", "different-cores"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := m.Possible(tt.job); got != tt.want {
				t.Errorf("possible: %t", got)
			}
		})
	}
	if err := (*Machines)(nil).rulesOut(job("setup", "vxlan", "local", "")); err != nil {
		t.Errorf("without machines: %v", err)
	}
	var never *wiring.NotApplicable
	if err := m.rulesOut(job("setup", "vxlan", "switched", "")); !errors.As(err, &never) {
		t.Errorf("got %v", err)
	}
}

func TestWithExistingPath(t *testing.T) {
	e := experiment.Experiment{Name: "mine", Repeat: 1, Groups: []experiment.Group{{
		Networks: []string{"vxlan"}, Topologies: []string{"switched"},
		Work: []experiment.Work{{Kind: experiment.TCP, Duration: 1}, {Kind: experiment.Setup}},
	}}}
	with := WithExistingPath(e)
	with.Between = threeMachines().Pairs()
	count := map[string]int{}
	for _, j := range with.Jobs() {
		if j.Cell.Factors[experiment.BetweenFactor] == "" {
			t.Errorf("%s has no machines", j.ID())
		}
		count[j.Cell.Network+" "+j.Work.Kind+" "+j.Cell.Direction]++
	}
	for want, n := range map[string]int{
		"vxlan tcp between": 2, "vxlan setup between": 2, "existing-path tcp outbound": 2, "existing-path tcp inbound": 2, "existing-path setup outbound": 0,
	} {
		if count[want] != n {
			t.Errorf("%s: %d jobs, want %d", want, count[want], n)
		}
	}
	if len(e.Groups) != 1 {
		t.Error("the experiment itself was changed")
	}
}

func TestMachinesHaveNames(t *testing.T) {
	m := threeMachines()
	if got := strings.Join(m.Pairs(), "; "); got != "a and b; a and c" {
		t.Errorf("pairs: %s", got)
	}
	twins := []Machine{{Node: &remote.Node{Address: remote.Address{Host: "a", Port: "1"}}}, {Node: &remote.Node{Address: remote.Address{Host: "a", Port: "2"}}}}
	if got := nameOf(twins[1], twins); got != "a:2" {
		t.Errorf("the second of two machines with one name: %s", got)
	}
	job := experiment.Job{Cell: cell.Cell{Direction: "inbound", Factors: map[string]string{experiment.BetweenFactor: "a and c"}}}
	if p := m.of(job); p.client.Address.Host != "c" || p.server.Address.Host != "a" {
		t.Errorf("inbound from %s to %s", p.client, p.server)
	}
}
