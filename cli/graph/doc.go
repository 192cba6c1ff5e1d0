// Package graph has the command graph, which draws what is wired to what (package
// network/graph).
package graph
