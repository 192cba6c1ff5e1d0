package main

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"cleat/internal/program"
	"cleat/link"
	"cleat/network/attach"
	"cleat/network/keep"
)

// isWiring reports whether a command line changes wiring, which a running keeper does in
// its place.
func isWiring(args []string) bool {
	return len(args) > 0 && (args[0] == attachName || args[0] == detachName)
}

// forward has a running keeper run a command line. If handled is false, nothing was
// changed and the command is to be run in this process.
func forward(args []string) (code int, handled bool) {
	store, err := attach.OpenStore("")
	if err != nil {
		return 0, false
	}
	code, err = keep.Forward(context.Background(), store, args, os.Stdout, os.Stderr)
	switch {
	case err == nil:
		return code, true
	case errors.Is(err, keep.ErrDeclined):
		return 0, false
	case errors.Is(err, keep.ErrLost):
		err = withHint(err, "`cleat ls` lists what is attached; the next command that changes wiring undoes what is incomplete")
	}
	return report(os.Stderr, err, nil), true
}

// answer runs a command line that a process has sent to this keeper, with that process's
// environment instead of its own. It declines (handled is false) if Open vSwitch is
// elsewhere for that process. background counts work that goes on afterwards.
func answer(ctx context.Context, r keep.Request, out, errs io.Writer, background *sync.WaitGroup) (code int, handled bool) {
	if !isWiring(r.Args) {
		return 0, false
	}
	for _, name := range keep.OVSEnv {
		if r.Env[name] != os.Getenv(name) {
			return 0, false
		}
	}
	theirs, _ := program.FindIn(r.Env["PATH"], link.OVSControl)
	if ours, _ := program.Find(link.OVSControl); theirs != ours {
		return 0, false
	}
	ctx = withClient(ctx, client{func(name string) string { return r.Env[name] }, background})
	return execute(ctx, r.Args, out, errs), true
}

// client is the process for which a command line is run.
type client struct {
	getenv     func(string) string // as os.Getenv
	background *sync.WaitGroup     // for work that may outlast the command; nil: none may
}

// clientKey is the key of a context's value of type client, if that is another process.
type clientKey struct{}

// withClient returns a context for a command that is run for another process.
func withClient(ctx context.Context, c client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

func clientOf(ctx context.Context) client {
	if c, ok := ctx.Value(clientKey{}).(client); ok {
		return c
	}
	return client{getenv: os.Getenv}
}
