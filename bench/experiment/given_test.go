package experiment

import (
	"testing"
	"time"
)

func TestGiven(t *testing.T) {
	full := Override{
		Networks: []string{"veth"}, Repeat: 1, Duration: time.Second, Pairs: []int{1},
		Engine: []string{"cleat"}, Seed: 1, LinkRate: "1G", MTU: []int{0}, Work: []string{"tcp"}, Links: []int{1},
		Runtimes: []string{"native"}, Only: Only{"network": {"veth"}},
	}
	for _, tt := range []struct{ name, want string }{
		{"networks", "networks: none is named"},
		{"engine", "engine: none is named"},
		{"work", "work: none is named"},
		{"pairs", "pairs: no number is given: want 1…128"},
		{"mtu", "mtu: no number is given: want 576…65535 bytes, or 0 for the kernel's default"},
		{"repeat", "repeat 0: want 1…10000 blocks"},
		{"duration", "duration 0s: want 10ms…24h0m0s"},
		{"links", "links: no number is given: want 1…64"},
		{"seed", "seed 0: want 1 or more, or none for a fresh one"},
		{"runtime", "runtime: none is named"},
		{"only", "only: nothing is named: want AXIS=VALUE, e.g. network=veth or mtu=1500|9000"},
		{"link-rate", "link rate: none is given: want a number in bit/s, with k, M, G or T if need be"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := full.Given(tt.name); err != nil {
				t.Errorf("with a value: %v", err)
			}
			if err := (Override{}).Given(tt.name); err == nil || err.Error() != tt.want {
				t.Errorf("without: got  %v\nwant %s", err, tt.want)
			}
		})
	}
	if err := (Override{Work: []string{"tcp", "tpc"}}).Given("work"); err == nil || err.Error() != `unknown kind of work "tpc"` {
		t.Errorf("a kind that there is not: %v", err)
	}
	if err := (Override{}).Given("out"); err != nil {
		t.Errorf("of a flag that is none of ours: %v", err)
	}
}
