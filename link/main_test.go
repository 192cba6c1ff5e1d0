package link_test

import (
	"os"
	"runtime/debug"
	"testing"

	"cleat/lab"
)

// TestMain turns the garbage collector off, because it closes leaked descriptors that
// takeSnapshot looks for. The suite then needs about 100 MB.
func TestMain(m *testing.M) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(200 << 20) // a guest has 512 MB
	os.Exit(lab.RunTests(m))
}
