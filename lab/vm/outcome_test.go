package vm

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const testOutput = "init: a line of nobody\r\n" +
	"\x16=== RUN   TestConformance\n" +
	"\x16=== RUN   TestConformance/veth\n" +
	"    conform_test.go:12: first\n" +
	"        second, indented\n" +
	"a line without end\x16--- PASS: TestConformance/veth (0.10s)\n" +
	"\x16=== RUN   TestConformance/netkit\n" +
	"    conform_test.go:14: links of kind \"netkit\": the kernel is too old\n" +
	"\x16--- SKIP: TestConformance/netkit (0.00s)\n" +
	"\x16=== NAME  TestConformance\n" +
	"    conform_test.go:20: done\n" +
	"\x16--- FAIL: TestConformance (0.20s)\n" +
	"\x16=== RUN   TestPanics\n" +
	"panic: oh\n"

func TestOutcomes(t *testing.T) {
	got := Outcomes(Readable([]byte(testOutput)))
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
