// Package ctl has the command ctl, which queries and controls running instances of `cleat run`
// (package sandbox/control).
package ctl
