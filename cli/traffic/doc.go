// Package traffic has the command traffic: the load generator of `cleat bench`, by itself
// (package traffic).
package traffic
