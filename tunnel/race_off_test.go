//go:build !race

package tunnel

// raceEnabled reports whether the race detector is on.
const raceEnabled = false
