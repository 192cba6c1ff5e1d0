//go:build race

package tunnel

// raced tells that the race detector is on: under it, sync.Pool drops at random.
const raced = true
