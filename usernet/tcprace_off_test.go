//go:build !race

package usernet

// raceDetector tells whether tests run under it: it allocates.
const raceDetector = false
