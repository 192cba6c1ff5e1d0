//go:build !amd64 && !arm64

package seal

// archCalls is empty: there is no filter for architectures whose calls are not listed
// here.
func archCalls() []Call { return nil }
