//go:build !race

package usernet

// raceDetector reports whether tests run under the race detector, which allocates.
const raceDetector = false
