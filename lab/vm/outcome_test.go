package vm

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const testOutput = "init: a line of nobody\r\n" + `=== RUN   TestConformance
=== RUN   TestConformance/veth
    conform_test.go:12: first
        second, indented
=== RUN   TestConformance/netkit
    conform_test.go:14: links of kind "netkit": the kernel is too old
=== NAME  TestConformance
    conform_test.go:20: done
--- FAIL: TestConformance (0.20s)
    --- PASS: TestConformance/veth (0.10s)
    --- SKIP: TestConformance/netkit (0.00s)
=== RUN   TestPanics
panic: oh
`

func TestOutcomes(t *testing.T) {
	got := Outcomes(testOutput)
	want := []Outcome{
		{"TestConformance", Fail, []string{"done"}},
		{"TestConformance/veth", Pass, []string{"first", "    second, indented"}},
		{"TestConformance/netkit", Skip, []string{`links of kind "netkit": the kernel is too old`}},
		{"TestPanics", Died, nil},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
	var leaves []string
	for _, o := range Leaves(got) {
		leaves = append(leaves, o.Test)
	}
	if d := cmp.Diff([]string{"TestConformance/veth", "TestConformance/netkit", "TestPanics"}, leaves); d != "" {
		t.Errorf("leaves (-want +got):\n%s", d)
	}
}
