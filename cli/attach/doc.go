// Package attach has the commands attach, detach, ls and inspect, which wire running
// containers.
package attach
