//go:build !race

package secure

// raced tells that the race detector is on.
const raced = false
