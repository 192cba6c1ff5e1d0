// Package remote measures between machines: it runs this program on another machine
// over ssh, and starts programs and builds networks there.
//
// # Theory of operation
//
// Dial starts the user's own ssh program, so that its configuration, agent, known hosts
// and jump hosts apply. One ssh session carries everything. A short shell script at the
// other end chooses a directory, checks architecture, space, permission to execute, and
// root, receives this program's file, compares its SHA-256, and runs it as an agent
// (package agent). From then on both ends speak messages: four bytes of length, big
// endian, and JSON.
//
//	this machine                                another machine
//	Node ─ ssh ══════════════════ sshd ─ sh ─ agent (outside) ─ agent in a lab
//	                                                             ├ containers, links
//	                                                             └ programs
//
// A request has a number, which its reply repeats. A program that was started has the
// number of its request: its output and its end carry it, and its input is sent with
// it. A socket is a program, too: its stream is input and output, so that two machines'
// sockets are joined as two programs are. Clients reach a server's control socket so
// (Forward): control does not share the path that is measured.
//
// # When the connection ends
//
// Each end sends a message at least every pingEvery. An end that has heard nothing for
// SilenceLimit takes the connection for lost. A Node then fails whatever waits, and Lost
// is closed. An agent exits, which ends everything it started: as root it is process 1 of
// a PID namespace, so the kernel kills all programs and removes namespaces and links, even
// if the agent is killed. Without root it has only programs, which die with it. A lab's
// agent removes its file and directory as soon as it runs. The shell removes them if the
// agent never ran.
//
// # Clocks
//
// Nothing compares the clocks of two machines. A program begins, and a meter measures,
// some time after a message arrived, by its own machine's monotonic clock. The windows
// of two machines therefore differ by the difference of two messages' delays.
//
// # Files
//
//	address.go    ssh://user@host:port
//	bootstrap.go  the shell script and its answers
//	session.go    the ssh process, and the terminal on which it asks
//	message.go    messages and their bodies
//	node.go       requests to an agent
//	program.go    programs of an agent as lab.Proc
//	forward.go    control sockets from machine to machine
//
// # Limits
//
// The other machine runs Linux with this machine's architecture, and has sh, mktemp, df,
// tail, head, sha256sum, uname, id and rm, which coreutils and busybox have.
package remote
