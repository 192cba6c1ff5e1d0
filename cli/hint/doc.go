// Package hint has errors that carry a hint about what to type, and errors about the
// command line.
package hint
