package link_test

import (
	"os"
	"runtime/debug"
	"testing"

	"cleat/lab"
)

// TestMain keeps the garbage collector from closing descriptors that this
// package forgot: takeTrace looks for them. The suite needs some 100 MB so.
func TestMain(m *testing.M) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(200 << 20) // a guest has 512 MB
	os.Exit(lab.RunTests(m))
}
