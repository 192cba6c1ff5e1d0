//go:build !amd64 && !arm64

package sandbox

import "cleat/internal/seal"

// archCalls returns nothing: Seal refuses architectures whose system calls it does not know.
func archCalls() []seal.Call { return nil }
