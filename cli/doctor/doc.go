// Package doctor has the command doctor, which reports settings that distort measurements
// or break networking. The checks of the machine are in package bench/host (check_*.go), and
// those of the path between two namespaces in network/trace.
package doctor
