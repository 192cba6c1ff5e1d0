package fastpath_test

import (
	"testing"

	"cleat/fastpath"
	"cleat/lab"
)

// BenchmarkNew loads the programs. What the kernel's verifier takes is most of it.
func BenchmarkNew(b *testing.B) {
	lab.Need(b)
	for b.Loop() {
		p, err := fastpath.New()
		if err != nil {
			b.Skip(err)
		}
		p.Close()
	}
}
