// Package complete has the command completion, and tells the shell which words complete a
// flag.
package complete
