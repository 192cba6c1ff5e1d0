// Command cleat builds every kind of Linux container network, measures them against each
// other on this machine, and gives programs and containers networks. `cleat --help` lists
// its commands. Called pasta, slirp4netns, netavark or
// pipework, it replaces those programs.
package main

import (
	"os"

	"cleat/cli"
	"cleat/compat"
	"cleat/internal/buildinfo"
	"cleat/lab"
	"cleat/mptcp"
	"cleat/mptcp/upgrade"
	"cleat/sandbox"
)

func main() {
	// Each of these returns unless this process is a helper that the package has started.
	sandbox.Init()
	mptcp.Init()
	upgrade.Init()
	lab.AnswerProbe()
	if program, args, ok := compat.Lookup(os.Args); ok {
		os.Exit(program.Main(args, buildinfo.Version()))
	}
	os.Exit(cli.Run(os.Args[1:]))
}
