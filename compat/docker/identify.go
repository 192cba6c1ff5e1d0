package docker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/network/named"
)

// The daemon knows which container has an endpoint as soon as it has got the answer to Join. It is asked
// at these intervals, which double.
const (
	firstAsk  = 8 * time.Millisecond
	lastAsk   = time.Second
	askAtMost = 30 * time.Second
)

// identifyLater finds out in the background what the container of an endpoint is called.
func (s *Server) identifyLater(n *dockerNetwork, e *dockerEndpoint, peer int) {
	if s.ctx.Err() != nil {
		return
	}
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, askAtMost+apiTimeout)
		defer cancel()
		api := n.API
		if peer != 0 {
			api = apiOf(peer)
		}
		if err := s.identify(ctx, api, n, e); err != nil && s.ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) {
			s.Log("network %s: the container of endpoint %s is not known: %v", n.Network, e.ID[:min(len(e.ID), shortID)], err)
		}
	})
}

// identify asks the daemon what the container of an endpoint is called: first for its name and ID, which
// it tells at once, then for aliases and its process, which it tells when the container has started.
func (s *Server) identify(ctx context.Context, api string, n *dockerNetwork, e *dockerEndpoint) error {
	d := dialDaemon(api)
	defer d.close()
	id, name, err := d.waitForMember(ctx, n.ID, e.ID)
	if err != nil {
		return err
	}
	container := e.container()
	container.ID, container.Name, container.Ref = id, name, name
	if err := s.tell(ctx, n, e, named.Identity{Container: container}); err != nil {
		return err
	}
	i, err := d.inspect(ctx, id)
	if errors.Is(err, errNotThere) {
		return fs.ErrNotExist // it has ended
	}
	if err != nil {
		return err
	}
	container.PID, container.ResolvConfFile = i.State.Pid, i.ResolvConfPath
	var aliases []string
	for _, on := range i.NetworkSettings.Networks {
		if on.EndpointID == e.ID {
			aliases = append(slices.Clone(on.Aliases), on.DNSNames...)
		}
	}
	text, _ := os.ReadFile(i.ResolvConfPath) // without it nothing is known
	return s.tell(ctx, n, e, named.Identity{Container: container, Aliases: aliases, NamesInside: asksFromHost(text)})
}

// waitForMember returns the ID and name of the container that has an endpoint.
func (d *daemon) waitForMember(ctx context.Context, network, endpoint string) (id, name string, err error) {
	deadline := time.Now().Add(askAtMost)
	for pause := firstAsk; ; pause = min(2*pause, lastAsk) {
		all, err := d.members(ctx, network)
		for id, m := range all {
			if m.EndpointID == endpoint && !strings.HasPrefix(id, "ep-") {
				return id, m.Name, nil
			}
		}
		if err == nil {
			err = fs.ErrNotExist
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return "", "", err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// tell gives an endpoint what is known of its container now.
func (s *Server) tell(ctx context.Context, n *dockerNetwork, e *dockerEndpoint, who named.Identity) error {
	who.Aliases = append(slices.Clone(e.Options.Aliases), who.Aliases...)
	var err error
	doErr := s.Do(func() error {
		var c *call
		if c, err = s.open(ctx, 0); err != nil {
			return nil
		}
		var got *named.Result
		if got, err = named.Identify(ctx, c.networks, n.Network, who); err == nil {
			c.note(got)
		}
		return nil
	})
	return errors.Join(err, doErr)
}
