package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	attachcmd "cleat/cli/attach"
	"cleat/cli/container"
	"cleat/cli/exit"
	"cleat/cli/hint"
	"cleat/cli/networks"
	"cleat/compat"
	"cleat/internal/buildinfo"
	"cleat/internal/program"
	"cleat/link"
	"cleat/network/attach"
	"cleat/network/keep/client"
)

// isForKeeper reports whether a command line changes wiring, which a running keeper does in its place, or asks for what
// only a keeper knows.
func isForKeeper(args []string) bool {
	return len(args) > 0 && (args[0] == attachcmd.Name || args[0] == attachcmd.DetachName || args[0] == networks.Name && (networks.Changes(args[1:]) || networks.IsCounters(args[1:])))
}

// forward has a running keeper run a command line. If handled is false, nothing was
// changed and the command is to be run in this process.
func forward(args []string) (code int, handled bool) {
	store, err := attach.OpenStore("")
	if err != nil {
		return 0, false
	}
	code, err = client.Forward(context.Background(), store.Path(client.SocketName), client.NewRequest(args), os.Stdout, os.Stderr)
	switch {
	case err == nil:
		return code, true
	case errors.Is(err, client.ErrDeclined):
		return 0, false
	case errors.Is(err, client.ErrLost):
		err = hint.With(err, "`cleat ls` lists what is attached; the next command that changes wiring undoes what is incomplete")
	}
	return exit.Report(os.Stderr, err, nil), true
}

// answer runs a command line that a process has sent to this keeper, with that process's
// environment instead of its own. It declines (handled is false) if Open vSwitch is
// elsewhere for that process. background counts work that goes on afterwards.
func answer(ctx context.Context, r client.Request, out, errs io.Writer, background *sync.WaitGroup) (code int, handled bool) {
	if !isForKeeper(r.Args) && !compat.IsContract(r.Args) {
		return 0, false
	}
	for _, name := range client.OVSEnv {
		if r.Env[name] != os.Getenv(name) {
			return 0, false
		}
	}
	theirs, _ := program.FindIn(r.Env["PATH"], link.OVSControl)
	if ours, _ := program.Find(link.OVSControl); theirs != ours {
		return 0, false
	}
	ctx = container.WithCaller(ctx, container.Caller{Getenv: func(name string) string { return r.Env[name] }, Background: background})
	if code, ok := compat.Answer(ctx, r, buildinfo.Version(), out, errs, background); ok {
		return code, true
	}
	return execute(ctx, r.Args, out, errs), true
}
