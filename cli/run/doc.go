// Package run has the command run, which gives a program or a namespace a network of its own
// (package sandbox), and seccomp-profile, which belongs to it.
package run
