// Package control sends requests to the node of this host, which runs as cleat-node. It does not know the
// registry, so programs that use it stay small.
package control
