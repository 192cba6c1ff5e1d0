// Package run has the commands run and seccomp-profile, which give a program a network of
// its own.
package run
