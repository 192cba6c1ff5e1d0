package compat

import (
	"context"
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
	"cleat/network/keep/client"
)

// CNI is the name of the CNI plug-in as a program, and the first word of its requests to a keeper.
const CNI = "cleat-cni"

// cniText is the help of the plug-in.
const cniText = `Connects containers to networks of "cleat net" for runtimes that use CNI.
Runtimes start the small program cleat-cni, which asks a running keeper, or this
program if there is none: it reads the variables CNI_* and a configuration on
its standard input.

"cleat net cni-conf NETWORK" prints a configuration for /etc/cni/net.d;
doc/plugins.md has the rest.`

// cniMain runs the plug-in in this process, which no keeper has done.
func cniMain(args []string, version string) int {
	if len(args) > 0 {
		fmt.Printf("%s (cleat) %s\n\n%s\n", CNI, version, cniText)
		return 0
	}
	ctx, stop := exit.Interruptible()
	defer stop()
	stdin, err := io.ReadAll(io.LimitReader(os.Stdin, client.MaxRequest))
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: read the configuration: %v\n", CNI, err)
		return 1
	}
	// The first thread must not enter namespaces (netns.Do).
	runtime.LockOSThread()
	code := make(chan int)
	go func() {
		c := runCNI(ctx, cni.Call{Getenv: os.Getenv, Stdin: stdin, Out: os.Stdout}, nil)
		if os.Getenv("CNI_COMMAND") == "ADD" {
			networks.StartKeeper()
		}
		code <- c
	}()
	return <-code
}

// Answer runs a request that a plug-in has sent to this keeper, and returns the exit code. It reports
// whether the request is one.
func Answer(ctx context.Context, r client.Request, out io.Writer, background *sync.WaitGroup) (code int, ok bool) {
	if !IsContract(r.Args) {
		return 0, false
	}
	return runCNI(ctx, cni.Call{Getenv: func(name string) string { return r.Env[name] }, Stdin: r.Stdin, Out: out}, background), true
}

// IsContract reports whether a request to a keeper comes from a plug-in of an engine.
func IsContract(args []string) bool { return len(args) > 0 && args[0] == CNI }

// IsQuery reports whether a request only asks how things are, so often that it must not wait for others.
func IsQuery(args []string) bool { return IsContract(args) && len(args) > 1 && args[1] == "STATUS" }

func runCNI(ctx context.Context, c cni.Call, background *sync.WaitGroup) int {
	cfg, err := networks.Config(ctx)
	cfg.Attach.Background = background
	explain := func(err error) string { return strings.Join(hint.All(networks.WithHint(err)), "; ") }
	h := cni.Host{Networks: cfg, Explain: explain}
	if err != nil {
		return h.Fail(c, err)
	}
	return cni.Run(ctx, h, c)
}
