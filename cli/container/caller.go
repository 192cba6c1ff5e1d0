package container

import (
	"context"
	"os"
	"sync"
)

// A Caller is the process for which a command line is run.
type Caller struct {
	Getenv     func(string) string // as os.Getenv
	Background *sync.WaitGroup     // for work that may outlast the command; nil: none may
}

// callerKey is the key of a Caller in a context.
type callerKey struct{}

// WithCaller returns a context for a command that is run for another process.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the process for which a command runs: its own, unless WithCaller says
// otherwise.
func CallerOf(ctx context.Context) Caller {
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Getenv: os.Getenv}
}
