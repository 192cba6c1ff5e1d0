package compat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"

	"cleat/cli/exit"
	"cleat/cli/hint"
	"cleat/cli/networks"
	"cleat/compat/cni"
	"cleat/compat/netavark"
	"cleat/compat/netavark/args"
	"cleat/network/keep/client"
	"cleat/network/named"
)

// The contracts by which engines connect containers to networks: names of programs, and the first words
// of requests to a keeper.
const (
	CNI            = "cleat-cni"
	Netavark       = args.Program
	NetavarkPlugin = args.Plugin
)

// cniText is the help of the plug-in.
const cniText = `Connects containers to networks of "cleat net" for runtimes that use CNI.
Runtimes start the small program cleat-cni, which asks a running keeper, or this
program if there is none: it reads the variables CNI_* and a configuration on
its standard input.

"cleat net cni-conf NETWORK" prints a configuration for /etc/cni/net.d;
doc/plugins.md has the rest.`

// inThisProcess runs a call of a contract in this process, which no keeper has done.
func inThisProcess(run func(ctx context.Context) int) int {
	ctx, stop := exit.Interruptible()
	defer stop()
	// The first thread must not enter namespaces (netns.Do).
	runtime.LockOSThread()
	code := make(chan int)
	go func() { code <- run(ctx) }()
	return <-code
}

// cniMain runs the CNI plug-in in this process.
func cniMain(_ []string, version string) int {
	if os.Getenv("CNI_COMMAND") == "" {
		fmt.Printf("%s (cleat) %s\n\n%s\n", CNI, version, cniText)
		return 0
	}
	stdin, err := io.ReadAll(io.LimitReader(os.Stdin, client.MaxRequest))
	if err != nil {
		return cni.Host{}.Fail(cni.Call{Out: os.Stdout}, fmt.Errorf("%w: %w", cni.ErrInput, err))
	}
	return inThisProcess(func(ctx context.Context) int {
		c := runCNI(ctx, cni.Call{Getenv: os.Getenv, Stdin: stdin, Out: os.Stdout}, nil)
		if os.Getenv("CNI_COMMAND") == "ADD" {
			networks.StartKeeper()
		}
		return c
	})
}

// netavarkMain runs netavark in this process.
func netavarkMain(words []string, version string) int { return netavarkHere(words, version, false) }

func netavarkPluginMain(words []string, version string) int {
	return netavarkHere(words, version, true)
}

func netavarkHere(words []string, version string, plugin bool) int {
	c := netavark.Call{Args: words, Plugin: plugin, Out: os.Stdout, Errors: os.Stderr, Version: version}
	line, err := args.Parse(words)
	if err == nil {
		if dir := line.StateDir(); dir != "" {
			err = os.Setenv("CLEAT_STATE_DIR", dir)
		}
	}
	if err == nil {
		c.Stdin, err = netavark.ReadInput(line, os.Stdin, client.MaxRequest)
	}
	if err != nil && !errors.As(err, new(*args.UsageError)) {
		return netavark.Host{}.Fail(c, err)
	}
	return inThisProcess(func(ctx context.Context) int {
		code := runNetavark(ctx, c, nil, networks.ServeNames)
		if line.Command == "setup" {
			networks.StartKeeper()
		}
		return code
	})
}

// Answer runs a request that a program of a contract has sent to this keeper, and returns the exit code.
// It reports whether the request is one that this process can run.
func Answer(ctx context.Context, r client.Request, version string, out, errs io.Writer, background *sync.WaitGroup) (code int, ok bool) {
	if !IsContract(r.Args) {
		return 0, false
	}
	if r.Args[0] == CNI {
		return runCNI(ctx, cni.Call{Getenv: func(name string) string { return r.Env[name] }, Stdin: r.Stdin, Out: out}, background), true
	}
	if netavark.NeedsPlugin(r.Stdin) {
		return 0, false
	}
	c := netavark.Call{Args: r.Args[1:], Stdin: r.Stdin, Plugin: r.Args[0] == NetavarkPlugin, Out: out, Errors: errs, Version: version}
	return runNetavark(ctx, c, background, networks.WaitForNames), true
}

// IsContract reports whether a request to a keeper comes from a program that an engine starts.
func IsContract(args []string) bool {
	return len(args) > 0 && (args[0] == CNI || args[0] == Netavark || args[0] == NetavarkPlugin)
}

// explain returns what to do about an error, in words.
func explain(err error) string { return strings.Join(hint.All(networks.WithHint(err)), "; ") }

// IsQuery reports whether a request only asks how things are, so often that it must not wait for others.
func IsQuery(args []string) bool { return IsContract(args) && len(args) > 1 && args[1] == "STATUS" }

func runCNI(ctx context.Context, c cni.Call, background *sync.WaitGroup) int {
	cfg, err := networks.Config(ctx)
	cfg.Attach.Background = background
	h := cni.Host{Networks: cfg, Explain: explain}
	if err != nil {
		return h.Fail(c, err)
	}
	return cni.Run(ctx, h, c)
}

func runNetavark(ctx context.Context, c netavark.Call, background *sync.WaitGroup, serve func(context.Context, named.Config) error) int {
	cfg, err := networks.Config(ctx)
	cfg.Attach.Background = background
	h := netavark.Host{Networks: cfg, Explain: explain, Serve: func(ctx context.Context) error { return serve(ctx, cfg) }}
	if err != nil {
		return h.Fail(c, err)
	}
	return netavark.Run(ctx, h, c)
}
