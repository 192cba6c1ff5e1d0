//go:build race

package secure

// raceEnabled reports whether the race detector is on: it makes sync.Pool drop items at random.
const raceEnabled = true
