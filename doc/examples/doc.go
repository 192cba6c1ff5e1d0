// Package examples has no code: it holds programs that use package sandbox, and
// the tests that run them. Each is a program of its own, to be copied.
//
//   - minimal: a program in a network of its own, in ten lines
//   - firewall: what it may reach, by name and by address
//   - socks5: all its connections through a proxy
package examples
