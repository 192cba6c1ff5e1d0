package survey

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	const rest = " 1 1 1 0 -1 %s 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"
	for _, tt := range []struct {
		name, text string
		want       process
		ok         bool
	}{
		{"plain", "7 (sleep) S" + strings.Replace(rest, "%s", "4194304", 1), process{7, "sleep", false, 123450 * time.Millisecond}, true},
		{"a name that looks like the rest", "7 (a) R 1 (b) S" + strings.Replace(rest, "%s", "4194304", 1), process{7, "a) R 1 (b", false, 123450 * time.Millisecond}, true},
		{"a thread of the kernel", "7 (kworker/0:1) I" + strings.Replace(rest, "%s", "69238880", 1), process{7, "kworker/0:1", true, 123450 * time.Millisecond}, true},
		{"cut off", "7 (sleep) S 1 1", process{}, false},
		{"no name", "7 sleep", process{}, false},
		{"brackets the wrong way round", "7 )x(", process{}, false},
		{"nothing", "", process{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := parseStat(7, []byte(tt.text)); ok != tt.ok || got != tt.want {
				t.Errorf("got %+v, %v", got, ok)
			}
		})
	}
}

func TestContainerOf(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, tt := range []struct{ text, runtime, name string }{
		{"0::/system.slice/docker-" + id + ".scope\n", "docker", "0123456789ab"},
		{"12:cpu:/docker/" + id + "\n0::/\n", "docker", "0123456789ab"},
		{"0::/machine.slice/libpod-" + id + ".scope/container\n", "podman", "0123456789ab"},
		{"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope\n", "podman", "0123456789ab"},
		{"0::/machine.slice/libpod-conmon-" + id + ".scope\n", "", ""},
		{"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope\n", "containerd", "0123456789ab"},
		{"0::/default/" + id + "\n", "containerd", "0123456789ab"},
		{"0::/system.slice/crio-" + id + ".scope\n", "cri-o", "0123456789ab"},
		{"0::/lxc.payload.web/init.scope\n", "lxc", "web"},
		{"4:memory:/lxc/web\n", "lxc", "web"},
		{"0::/machine.slice/systemd-nspawn@web.service/payload\n", "nspawn", "web"},
		{"0::/user.slice/user-1000.slice/session-1.scope\n", "", ""},
		{"", "", ""},
	} {
		if runtime, name := containerOf(tt.text); runtime != tt.runtime || name != tt.name {
			t.Errorf("%q is %q of %q, want %q of %q", tt.text, name, runtime, tt.name, tt.runtime)
		}
	}
}

func TestNSID(t *testing.T) {
	for text, want := range map[string]uint64{"net:[4026531840]": 4026531840, "mnt:[4026531840]": 0, "net:[x]": 0, "net:[]": 0, "": 0} {
		if got, ok := nsID(text); got != want || ok != (want != 0) {
			t.Errorf("%q: %d, %v", text, got, ok)
		}
	}
}

func TestNatural(t *testing.T) {
	got := []string{"veth10", "veth9", "br", "veth", "veth09", "br-2x", "br-10", "veth9.2", "veth9.10"}
	slices.SortFunc(got, Natural)
	want := []string{"br", "br-2x", "br-10", "veth", "veth9", "veth9.2", "veth9.10", "veth09", "veth10"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if Natural("a1b", "a1b") != 0 {
		t.Error("Natural does not report a name as equal to itself")
	}
}

func TestLabels(t *testing.T) {
	g := labeller{proc: t.TempDir(), host: 1, here: 2, names: map[uint64]Name{3: {Container: "web", Runtime: "docker"}}}
	sh := []process{{pid: 9, name: "sh"}, {pid: 5, name: "init"}, {pid: 7, name: "sh"}}
	for _, tt := range []struct {
		label  string
		origin Origin
		p      candidate
	}{
		{"host", OriginHost, candidate{id: 1, processes: sh}},
		{"init:5", OriginProcess, candidate{id: 2, processes: sh}}, // our own, but the host's is known
		{"web", OriginContainer, candidate{id: 3, processes: sh, names: []string{"/run/docker/netns/0123"}}},
		{"blue", OriginName, candidate{id: 4, processes: sh, names: []string{"/mnt/a/long/way/to/other", "/run/netns/blue"}}},
		{"held-by-lab:8", OriginHolder, candidate{id: 6, holder: process{pid: 8, name: "lab"}}},
	} {
		n := Namespace{ID: tt.p.id}
		g.apply(&n, &tt.p)
		if n.Label != tt.label || n.Origin != tt.origin {
			t.Errorf("%d is %q (%s), want %q (%s)", tt.p.id, n.Label, n.Origin, tt.label, tt.origin)
		}
		if len(tt.p.processes) > 0 && (n.PID != 5 || n.Processes != 3 || n.Programs[0] != Program{"sh", 2}) {
			t.Errorf("%s: pid %d, %d processes, %v", n.Label, n.PID, n.Processes, n.Programs)
		}
	}
	here := Namespace{ID: 2}
	labeller{proc: t.TempDir(), here: 2}.apply(&here, &candidate{id: 2})
	if here.Label != "here" {
		t.Errorf("our own namespace is %q, and the host's is not known", here.Label)
	}
}

func TestNumberDuplicates(t *testing.T) {
	all := []Namespace{{Label: "web"}, {Label: "web#2"}, {Label: "web"}, {Label: "web"}}
	numberDuplicates(all)
	got := map[string]bool{}
	for _, n := range all {
		got[n.Label] = true
	}
	if len(got) != len(all) || all[0].Label != "web" {
		t.Errorf("labels %v", all)
	}
}

// The engine is put in front of the names of containers that two engines have.
func TestQualify(t *testing.T) {
	all := []Namespace{
		{Label: "web", Container: "web", Runtime: "podman", Origin: OriginContainer},
		{Label: "web", Container: "web", Runtime: "lxc", Origin: OriginContainer},
		{Label: "web", Names: []string{"/run/netns/web"}, Origin: OriginName},
		{Label: "db", Container: "db", Runtime: "lxc", Origin: OriginContainer},
	}
	qualify(all)
	for i, want := range []string{"podman:web", "lxc:web", "web", "db"} {
		if all[i].Label != want {
			t.Errorf("%d is %q, want %q", i, all[i].Label, want)
		}
	}
}

func TestSurveyFind(t *testing.T) {
	s := &Survey{Namespaces: []Namespace{
		{ID: 1, Label: "host", PID: 1},
		{ID: 2, Label: "web", Container: "web", PID: 40},
		{ID: 3, Label: "0123456789ab", Container: "0123456789ab", PID: 50},
		{ID: 4, Label: "40", Names: []string{"/run/netns/40"}, PID: 60},
		{ID: 5, Label: "web#2", Container: "web"},
	}}
	for word, want := range map[string][]uint64{
		"host": {1}, "web": {2}, "web/eth0": {2}, "web#2": {5}, "0123456789ab" + strings.Repeat("0", 52): {3}, "01234": {3}, "012": nil,
		"40": {4}, "50": {3}, "/run/netns/40": {4}, "nosuch": nil, "": nil,
	} {
		var got []uint64
		for _, n := range s.Find(word) {
			got = append(got, n.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q names %v, want %v", word, got, want)
		}
	}
}
