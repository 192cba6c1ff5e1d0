//go:build !race

package tunnel

// raced tells that the race detector is on.
const raced = false
