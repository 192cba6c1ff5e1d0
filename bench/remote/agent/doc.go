// Package agent is this program on another machine, as package remote runs it there: it
// starts programs, builds one side of networks, and measures processor time.
//
// # Theory of operation
//
// Serve reads requests from standard input and answers on standard output until the input
// ends, or until nothing has come for remote.SilenceLimit. Each request has a goroutine.
// Writes are one message each, under a lock.
//
// As root the agent is process 1 of a lab (package lab), with a descriptor of the
// machine's network namespace. Links are created there and moved, in one step, into
// namespaces of the lab. So the end of the process, however it ends, removes all of them.
// Without root the agent runs in place and can only start programs, which the kernel
// kills with it.
package agent
