// Package usernet is a network for a namespace without root: on one side a TUN
// device, on the other ordinary sockets of the host.
package usernet
