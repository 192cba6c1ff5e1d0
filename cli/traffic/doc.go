// Package traffic has the command traffic, the load generator by itself.
package traffic
