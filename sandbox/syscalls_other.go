//go:build !amd64 && !arm64

package sandbox

import "cleat/internal/seal"

// archCalls is empty: Seal refuses architectures whose system calls it does not know.
var archCalls []seal.Call
