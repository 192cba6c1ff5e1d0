//go:build !race

package secure

// raceEnabled reports whether the race detector is on.
const raceEnabled = false
