//go:build !amd64 && !arm64

package sandbox

import "cleat/internal/seal"

// archCalls: Seal refuses machines whose system calls we don't know.
func archCalls() []seal.Call { return nil }
