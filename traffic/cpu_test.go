package traffic

import (
	"slices"
	"testing"
)

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
