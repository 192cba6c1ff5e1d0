package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"cleat/internal/ask"
	"cleat/link"
)

// answer does what somebody asks a keeper for, with the variables of that process in
// the place of ours. false: it is for that process to do. meanwhile counts what goes on
// afterwards.
func answer(ctx context.Context, r ask.Request, out, errs io.Writer, meanwhile *sync.WaitGroup) (code int, done bool) {
	if r.Args[0] != attachName && r.Args[0] != detachName {
		return 0, false
	}
	for _, name := range ask.OVSVars {
		if r.Env[name] != os.Getenv(name) {
			return 0, false
		}
	}
	if programIn(r.Env["PATH"], link.OVSControl) != programIn(os.Getenv("PATH"), link.OVSControl) {
		return 0, false
	}
	ctx = context.WithValue(ctx, typistKey{}, typist{func(name string) string { return r.Env[name] }, meanwhile})
	return execute(ctx, r.Args, out, errs), true
}

// programIn is the file that a program's name stands for in directories as those of PATH;
// "": none.
func programIn(dirs, name string) string {
	for _, dir := range filepath.SplitList(dirs) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(path) {
			return path
		}
	}
	return ""
}

// typist is who typed the command that is carried out.
type typist struct {
	getenv    func(string) string // as os.Getenv
	meanwhile *sync.WaitGroup     // of what goes on when the command is done; nil: nothing may
}

// typistKey is the key of a context's value where that is somebody else.
type typistKey struct{}

func typedBy(ctx context.Context) typist {
	if t, ok := ctx.Value(typistKey{}).(typist); ok {
		return t
	}
	return typist{getenv: os.Getenv}
}
