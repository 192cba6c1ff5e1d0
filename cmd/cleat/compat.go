package main

import (
	"path/filepath"
	"runtime"

	"cleat/compat/pasta"
	"cleat/compat/pipework"
	"cleat/compat/slirp4netns"
	"cleat/network/keep"

	"github.com/spf13/cobra"
)

// face is another program whose place we take: under its name, as argv[0] or as
// our first argument, command line, messages and exit codes are that program's.
type face struct {
	name, group, short, long string
	main                     func(args []string, version string) int
}

var faces = []face{
	{"pasta", groupRun, "be pasta(1), for Podman and others", `Takes the place of pasta, the helper that gives rootless containers a network:
the same options and behaviour, and cleat's own data path. Installed or linked
under the name pasta it is found by Podman, Buildah and RootlessKit.

"cleat pasta --help" lists the options; doc/dropin.md tells what differs.`, pasta.Main},
	{"slirp4netns", groupRun, "be slirp4netns(1), for RootlessKit and others", `Takes the place of slirp4netns, a helper that gives namespaces a network: the
same options and API socket, and cleat's own data path. Installed or linked
under the name slirp4netns it is found by RootlessKit.

"cleat slirp4netns --help" lists the options; doc/dropin.md tells what differs.`, slirp4netns.Main},
	{"pipework", groupWire, "be pipework, for scripts that wire containers", `Takes the place of pipework, the script that puts running containers on bridges
and cards: the same arguments, done whole or not at all. ` + "`cleat ls`" + ` lists
what is attached so, and ` + "`cleat detach`" + ` undoes it.

"cleat pipework --help" lists the options; doc/pipework.md tells what differs.`,
		func(args []string, version string) int {
			return pipework.Main(args, version, pipework.Host{Open: attachConfig, Keep: keep.Start})
		}},
}

// asFace runs the program in whose place we were started, as argv[0] or as the
// first argument says, and returns its exit code; false: as ourselves.
func asFace(argv []string) (code int, is bool) {
	if len(argv) == 0 {
		return 0, false
	}
	for _, f := range faces {
		switch {
		case filepath.Base(argv[0]) == f.name:
			spareProcessor()
			return f.main(argv[1:], version()), true
		case len(argv) > 1 && argv[1] == f.name:
			spareProcessor()
			return f.main(argv[2:], version()), true
		}
	}
	return 0, false
}

// spareProcessor makes Go use one processor more than there are: threads that
// move bytes keep theirs while they are busy, and others need one as well.
func spareProcessor() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1) }

// newFaceCmds are the faces among our commands, for the help.
func newFaceCmds() []*cobra.Command {
	var cmds []*cobra.Command
	for _, f := range faces {
		cmds = append(cmds, &cobra.Command{
			Use:                   f.name + " [OPTION…]",
			GroupID:               f.group,
			DisableFlagsInUseLine: true,
			DisableFlagParsing:    true,
			Short:                 f.short,
			Long:                  f.long,
			RunE:                  func(_ *cobra.Command, args []string) error { return exitStatus(f.main(args, version())) },
		})
	}
	return cmds
}
