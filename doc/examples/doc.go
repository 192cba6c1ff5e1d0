// Package examples contains programs that use package sandbox, to be copied, and tests that run
// them:
//
//   - minimal runs a command with a network of its own
//   - firewall limits what the command may reach, by name and by address
//   - socks5 makes all its connections through a proxy
package examples
