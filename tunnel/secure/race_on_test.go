//go:build race

package secure

// raced tells that the race detector is on: under it, sync.Pool drops at random.
const raced = true
