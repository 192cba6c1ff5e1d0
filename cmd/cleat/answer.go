package main

import (
	"context"
	"io"
	"os"

	"cleat/internal/ask"
)

// answer does what somebody asks a keeper for, with the variables of that process in
// the place of ours. false: it is for that process to do.
func answer(ctx context.Context, r ask.Request, out, errs io.Writer) (code int, done bool) {
	if r.Args[0] != attachName && r.Args[0] != detachName {
		return 0, false
	}
	for _, name := range ask.OVSVars {
		if r.Env[name] != os.Getenv(name) {
			return 0, false
		}
	}
	ctx = context.WithValue(ctx, environ{}, func(name string) string { return r.Env[name] })
	return execute(ctx, r.Args, out, errs), true
}

// environ is the key of a context's value: the environment, as os.Getenv has it, of
// whoever typed the command.
type environ struct{}

// environOf is that environment; ours where nobody else's command is carried out.
func environOf(ctx context.Context) (getenv func(string) string, elses bool) {
	if getenv, elses = ctx.Value(environ{}).(func(string) string); elses {
		return getenv, true
	}
	return os.Getenv, false
}
