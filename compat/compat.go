// Package compat lists the programs that cleat replaces. Each has a package below this one,
// with that program's command line, messages and exit codes.
package compat

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"

	"cleat/cli/container"
	"cleat/cli/exit"
	"cleat/compat/pasta"
	"cleat/compat/pipework"
	"cleat/compat/slirp4netns"
	"cleat/network/keep"
)

// A Program is a program that cleat replaces.
type Program struct {
	Name    string
	Summary string // for a list of commands
	Text    string // for its help among cleat's own commands
	Wires   bool   // it changes the wiring of containers
	main    func(args []string, version string) int
}

// Programs returns all programs.
func Programs() []Program {
	return []Program{
		{Name: "pasta", Summary: "be pasta(1), for Podman and others", main: pasta.Main,
			Text: `Takes the place of pasta, the helper that gives rootless containers a network:
the same options and behaviour, and cleat's own data path. Installed or linked
under the name pasta it is found by Podman, Buildah and RootlessKit.

"cleat pasta --help" lists the options; doc/dropin.md lists the differences.`},
		{Name: "slirp4netns", Summary: "be slirp4netns(1), for RootlessKit and others", main: slirp4netns.Main,
			Text: `Takes the place of slirp4netns, a helper that gives namespaces a network: the
same options and API socket, and cleat's own data path. Installed or linked
under the name slirp4netns it is found by RootlessKit.

"cleat slirp4netns --help" lists the options; doc/dropin.md lists the
differences.`},
		{Name: CNI, Summary: "be a CNI plug-in, for containerd, CRI-O and nerdctl", Wires: true, main: cniMain,
			Text: cniText},
		{Name: Netavark, Summary: "be netavark, for Podman", Wires: true, main: netavarkMain,
			Text: `Takes the place of netavark and aardvark-dns, which give Podman's containers
networks and names: the same command line, input and output. The small program
cleat-cni, linked under the name netavark, starts faster; it asks a running
keeper, or this program if there is none.

Podman finds it with helper_binaries_dir in containers.conf(5); doc/dropin.md
says more, and lists the differences.`},
		{Name: NetavarkPlugin, Summary: "be a plug-in of netavark, for Podman", Wires: true, main: netavarkPluginMain,
			Text: `Adds a driver to netavark whose networks are those of ` + "`cleat net`" + `. The
small program cleat-cni is linked into a directory of plug-ins under the name of
the driver, such as cleat; doc/dropin.md says more.`},
		{Name: "pipework", Summary: "be pipework, for scripts that wire containers", Wires: true,
			main: func(args []string, version string) int {
				ctx, stop := exit.Interruptible()
				defer stop()
				code := pipework.Main(ctx, args, version, pipework.Host{Open: container.Config, Keep: keep.Start})
				var stopped exit.Signalled
				if code != 0 && errors.As(context.Cause(ctx), &stopped) {
					return exit.Signal + int(stopped.Signal)
				}
				return code
			},
			Text: `Takes the place of pipework, the script that puts running containers on bridges
and cards, with the same arguments. Each change is atomic. ` + "`cleat ls`" + ` lists
what pipework attached, and ` + "`cleat detach`" + ` undoes it.

"cleat pipework --help" lists the options; doc/pipework.md lists the
differences.`},
	}
}

// Lookup returns the program that argv names, as argv[0] or as the first argument, and that
// program's arguments.
func Lookup(argv []string) (p Program, args []string, ok bool) {
	if len(argv) == 0 {
		return Program{}, nil, false
	}
	for _, p := range Programs() {
		switch {
		case filepath.Base(argv[0]) == p.Name:
			return p, argv[1:], true
		case len(argv) > 1 && argv[1] == p.Name:
			return p, argv[2:], true
		}
	}
	return Program{}, nil, false
}

// Main runs the program and returns its exit code.
func (p Program) Main(args []string, version string) int {
	// Threads that move bytes keep a processor while they are busy; others need one as well.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	return p.main(args, version)
}
