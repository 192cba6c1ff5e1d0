// Package container resolves the CONTAINER arguments of commands: it finds running
// containers, names them, and completes them.
package container
