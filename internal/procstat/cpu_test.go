package procstat

import "testing"

const statSample = `cpu  1000 200 3000 40000 500 60 700 80 9 10
cpu0 500 100 1500 20000 250 30 350 40 4 5
intr 1 2 3
`

func TestParseCPU(t *testing.T) {
	got, err := parseCPU([]byte(statSample))
	want := CPU{User: 12, System: 30, SoftIRQ: 7.6, Idle: 405, Steal: 0.8}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3\n", "cpu 1 1 1 1 1 1 1\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 7 x 9 10\n"} {
		if _, err := parseCPU([]byte(bad)); err == nil {
			t.Errorf("%q is taken for /proc/stat", bad)
		}
	}
}

func TestSince(t *testing.T) {
	then := CPU{User: 2, System: 1, SoftIRQ: 2, Idle: 11, Steal: 1}
	now := CPU{User: 2.6, System: 3, SoftIRQ: 2.21, Idle: 10, Steal: 1.05} // idle went backwards
	if got, want := now.Since(then), (CPU{User: 0.6, System: 2, SoftIRQ: 0.21, Steal: 0.05}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// FuzzProcStat parses processor times.
func FuzzProcStat(f *testing.F) {
	f.Add([]byte("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1"), []byte("cpu 18446744073709551615 0 0 0 0 0 0 0"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		a, errA := parseCPU(before)
		b, errB := parseCPU(after)
		if errA != nil || errB != nil {
			return
		}
		if d := b.Since(a); d.User < 0 || d.System < 0 || d.SoftIRQ < 0 || d.Idle < 0 || d.Steal < 0 {
			t.Errorf("%+v", d)
		}
	})
}

func TestReadCPUGrows(t *testing.T) {
	before, err := ReadCPU()
	if err != nil {
		t.Fatal(err)
	}
	after, err := ReadCPU()
	if err != nil {
		t.Fatal(err)
	}
	if after.User < before.User || after.System < before.System {
		t.Errorf("%+v became %+v", before, after)
	}
}
