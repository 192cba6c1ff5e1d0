//go:build !amd64 && !arm64

package sys

const nativeArch = 0
