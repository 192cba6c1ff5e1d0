package keep

import (
	"context"
	"os"
	"strings"
	"sync"

	"cleat/cli/hint"
	"cleat/cli/networks"
	"cleat/compat/docker"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/keep"
	"cleat/network/named"
)

// serveDocker serves Docker's plug-in as long as the keeper runs, if there is a Docker on this host. Only
// one state directory can do so: the default one, or one whose keeper is told the socket. stop ends it.
func (f *flags) serveDocker(ctx context.Context, c *keep.Config, keeper *named.Keeper, kept named.KeeperConfig) (stop func(), err error) {
	path := f.dockerSocket
	if path == "" && servesDocker(c.Attach.Store) {
		path = docker.Socket
	}
	if path == "" {
		return func() {}, nil
	}
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	server := docker.New(docker.Config{
		Log: kept.Log, Do: host.Do,
		Explain: func(err error) string { return strings.Join(hint.All(networks.WithHint(err)), "; ") },
		Networks: func(ctx context.Context) (named.Config, error) {
			if rules := keeper.Rules(); rules != nil { // otherwise another process keeps the networks
				ctx = networks.WithShared(ctx, networks.Shared{Rules: rules, Files: kept.Files})
			}
			return networks.Config(ctx)
		},
	})
	// Without systemd's socket, Docker finds no plug-in when this process has ended.
	bySystemd := os.Getenv("LISTEN_FDS") != ""
	c.Busy = func() bool { return server.Busy() || !bySystemd && docker.InUse(c.Attach.Store) }
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Keep(ctx, path); err != nil && ctx.Err() == nil {
			kept.Log("Docker's plug-in is not served: %v", err)
		}
	})
	running.Go(func() { server.Run(ctx) })
	return sync.OnceFunc(func() { cancel(); running.Wait(); host.Close() }), nil
}

// servesDocker reports whether the keeper of a state directory serves Docker without being told.
func servesDocker(store *attach.Store) bool { return store.IsDefault() && docker.Installed() }
