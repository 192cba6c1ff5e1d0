// Package node is the command line of cleat-node.
package node
