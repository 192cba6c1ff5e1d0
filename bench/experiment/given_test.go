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
		{"networks", "networks: no name given"},
		{"engine", "engine: no name given"},
		{"work", "work: no name given"},
		{"pairs", "pairs: no number given: want 1…128"},
		{"mtu", "mtu: no number given: want 576…65535 bytes, or 0 for the kernel's default"},
		{"repeat", "repeat 0: want 1…10000 blocks"},
		{"duration", "duration 0s: want 10ms…24h0m0s"},
		{"links", "links: no number given: want 1…64"},
		{"seed", "seed 0: want 1 or more, or leave it out for a new one"},
		{"runtime", "runtime: no name given"},
		{"only", "only: no condition given: want AXIS=VALUE, e.g. network=veth or mtu=1500|9000"},
		{"link-rate", "link rate: no rate given: want a number in bit/s, optionally with k, M, G or T"},
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
		t.Errorf("unknown kind of work: %v", err)
	}
	if err := (Override{}).Given("out"); err != nil {
		t.Errorf("unknown flag: %v", err)
	}
}
