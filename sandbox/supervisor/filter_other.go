//go:build !amd64 && !arm64

package supervisor

const (
	otherABI    = 0
	foreignArch = 0
	archName    = ""
)

var oldCalls, foreignCalls, foreignSocketCalls []call
