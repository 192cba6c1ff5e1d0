// Package sandbox gives a process a network of its own, without root.
package sandbox
