// Package attach has the commands attach, detach, ls and inspect, which wire running
// containers. The work is done by package network/attach.
package attach
