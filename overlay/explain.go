package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"cleat/overlay/control"
)

// explain answers a question about a container of a host: this one, or another one, which it asks.
func (n *Node) explain(ctx context.Context, r *http.Request) (any, error) {
	q, err := body[control.Question](r)
	if err != nil {
		return nil, err
	}
	return n.askAbout(ctx, q.Host, q.About)
}

// askAbout asks a host a question about a container of it.
func (n *Node) askAbout(ctx context.Context, host string, question json.RawMessage) (json.RawMessage, error) {
	if host == n.settings.Host {
		return n.explainOwn(ctx, question)
	}
	n.mu.Lock()
	h, known := n.mirror.Hosts[host]
	_, lives := n.mirror.alive[host]
	n.mu.Unlock()
	switch {
	case !known:
		return nil, fmt.Errorf("the cluster has no host %s", host)
	case !lives:
		return nil, fmt.Errorf("host %s is not alive", host)
	}
	answer, err := n.askHost(ctx, h, hostRequest{Explain: question})
	if err == nil && answer.Explained == nil {
		err = fmt.Errorf("host %s has an earlier version, which can't answer", host)
	}
	if err != nil {
		return nil, err
	}
	return answer.Explained, nil
}

// explainOwn answers a question about a container of this host.
func (n *Node) explainOwn(ctx context.Context, question json.RawMessage) (json.RawMessage, error) {
	e, ok := n.cfg.Dataplane.(Explainer)
	if !ok {
		return nil, errors.New("this host can't answer questions about its containers")
	}
	return e.Explain(ctx, question, n.status(nil), n.askAbout)
}
