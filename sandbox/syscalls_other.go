//go:build !amd64 && !arm64

package sandbox

// archCalls: Seal refuses machines whose system calls we don't know.
var archCalls []call
