// Package complete has the command completion, and registers the words that a shell
// completes.
package complete
