package networks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/network/named"
	"cleat/network/why"
	"cleat/overlay/control"

	"github.com/spf13/cobra"
)

// clusterOf returns what this host's node knows of the cluster; nil if none runs.
func clusterOf(ctx context.Context, cfg named.Config) *control.Status {
	s, err := control.New(cfg.Attach.Store.Path()).Status(ctx)
	if err != nil {
		return nil
	}
	return &s
}

// Cluster returns what a node knows of the cluster, for package why. ask asks another host.
func Cluster(s *control.Status, ask func(ctx context.Context, host string, question json.RawMessage) (json.RawMessage, error)) *why.Cluster {
	c := &why.Cluster{Host: s.Host}
	for _, h := range s.Hosts {
		if h.Name != s.Host {
			c.Hosts = append(c.Hosts, why.OtherHost{Name: h.Name, Alive: h.Alive, Since: h.Since, Old: !s.Registry.Answers, By: h.By, Why: h.Why})
		}
	}
	c.Ask = func(ctx context.Context, host string, q why.EndQuestion) (*why.EndAnswer, error) {
		text, err := json.Marshal(why.Request{End: &q})
		if err != nil {
			return nil, err
		}
		if text, err = ask(ctx, host, text); err != nil {
			return nil, err
		}
		var a why.EndAnswer
		return &a, json.Unmarshal(text, &a)
	}
	return c
}

// askWhy answers a question about containers of all hosts. The host of the source tries.
func askWhy(ctx context.Context, cfg named.Config, q why.Question) (*why.Answer, error) {
	node := control.New(cfg.Attach.Store.Path())
	ask := func(ctx context.Context, host string, about json.RawMessage) (json.RawMessage, error) {
		return node.Explain(ctx, control.Question{Host: host, About: about})
	}
	if s := clusterOf(ctx, cfg); s != nil {
		q.Cluster = Cluster(s, ask)
	}
	a, err := why.Ask(ctx, cfg, q)
	var elsewhere *why.ElsewhereError
	if !errors.As(err, &elsewhere) {
		return a, err
	}
	there := q
	there.From = elsewhere.Container + "@" + elsewhere.Host
	text, err := json.Marshal(why.Request{Question: &there})
	if err != nil {
		return nil, err
	}
	if text, err = ask(ctx, elsewhere.Host, text); err != nil {
		return nil, hint.With(fmt.Errorf("%w: %w", elsewhere, err), "`cleat-node status` shows which hosts are alive")
	}
	a = &why.Answer{}
	if err := json.Unmarshal(text, a); err != nil {
		return nil, fmt.Errorf("read the answer of host %s: %w", elsewhere.Host, err)
	}
	a.Host = elsewhere.Host
	return a, nil
}

// containersElsewhere returns the containers of other hosts, with their hosts, for completion.
func containersElsewhere(cmd *cobra.Command) (words []string) {
	cfg, err := config(cmd)
	if err != nil {
		return nil
	}
	store := named.Store{Store: cfg.Attach.Store}
	for _, network := range networkNames(cmd) {
		all, _ := store.Elsewhere(network)
		for _, e := range all {
			if len(e.Names) > 0 {
				words = append(words, e.Names[0]+"@"+e.Host)
			}
		}
	}
	return words
}

// printSpanned prints the containers of all hosts on a network.
func printSpanned(cmd *cobra.Command, cfg named.Config, s *named.NetworkStatus) error {
	cluster := clusterOf(cmd.Context(), cfg)
	own := "this host"
	if cluster != nil {
		own = cluster.Host
	}
	t := term.NewTable(cmd.OutOrStdout())
	t.Row("CONTAINER", "HOST", "ENGINE", "LINK", "ADDRESSES", "NAMES", "PORTS", "STATE")
	row := func(host string, e *named.Endpoint, link, state string) {
		t.Row(e.Container.ShortName(), host, e.Container.Engine, link, term.OrDash(join(e.Addresses)), term.OrDash(strings.Join(e.Names, ",")), term.OrDash(join(e.Wanted.Ports)), state)
	}
	for _, e := range s.Endpoints {
		row(own, e.Endpoint, e.Interface, string(e.State))
	}
	for _, e := range s.Elsewhere {
		row(e.Host, e.Endpoint, "-", hostState(cluster, e.Host))
	}
	return t.Flush()
}

// hostState says how another host is.
func hostState(cluster *control.Status, host string) string {
	if cluster == nil {
		return "-"
	}
	for _, h := range cluster.Hosts {
		switch {
		case h.Name != host:
		case !h.Alive:
			return "host not alive"
		case h.By == why.Unreachable:
			return "host unreachable"
		case !cluster.Registry.Answers:
			return "host was alive"
		default:
			return "host alive"
		}
	}
	return "-"
}

func prefixTexts(all []netip.Prefix) (texts []string) {
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return texts
}
