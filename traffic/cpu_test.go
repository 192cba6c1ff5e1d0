package traffic

import (
	"slices"
	"testing"
)

const statSample = `cpu  1000 200 3000 40000 500 60 700 80 9 10
cpu0 500 100 1500 20000 250 30 350 40 4 5
intr 1 2 3
`

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte(statSample))
	want := CPUTimes{User: 12, System: 30, SoftIRQ: 7.6, Idle: 405, Steal: 0.8}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 7 x 9 10\n"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q is taken for /proc/stat", bad)
		}
	}
}

func TestSubNeverNegative(t *testing.T) {
	a := CPUTimes{User: 1, Idle: 5, Wall: 2}
	b := CPUTimes{User: 3, Idle: 4, Wall: 1}
	if got, want := a.Sub(b), (CPUTimes{Idle: 1, Wall: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestAccountingMode(t *testing.T) {
	tests := []struct {
		name, config, nohz, want string
	}{
		{"tick", "CONFIG_TICK_CPU_ACCOUNTING=y\n# CONFIG_IRQ_TIME_ACCOUNTING is not set\n", "", "tick"},
		{"Debian: built in, not used", "CONFIG_VIRT_CPU_ACCOUNTING=y\nCONFIG_VIRT_CPU_ACCOUNTING_GEN=y\n", "(null)\n", "tick"},
		{"nohz_full", "CONFIG_VIRT_CPU_ACCOUNTING_GEN=y\n", "2-7\n", "virt_gen"},
		{"irq time", "CONFIG_X=y\nCONFIG_IRQ_TIME_ACCOUNTING=y\nCONFIG_TICK_CPU_ACCOUNTING=y\n", "", "irq_time"},
		{"another architecture", "CONFIG_VIRT_CPU_ACCOUNTING_NATIVE=y\n", "", "unknown"},
		{"a name that ends the same", "CONFIG_HAVE_IRQ_TIME_ACCOUNTING=y\n", "", "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := accountingMode(tt.config, tt.nohz); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := AccountingMode(); !slices.Contains([]string{"tick", "virt_gen", "irq_time", "unknown"}, got) {
		t.Errorf("AccountingMode() = %q", got)
	}
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
	if used := after.Sub(before); used.Wall <= 0 {
		t.Errorf("no time passed between two readings: %+v", used)
	}
}
