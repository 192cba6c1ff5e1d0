//go:build race

package tunnel

// raceEnabled reports whether the race detector is on: it makes sync.Pool drop items at random.
const raceEnabled = true
