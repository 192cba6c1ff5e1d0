package main

import (
	"context"
	"encoding/json"
	"fmt"

	"cleat/cli/networks"
	"cleat/network/why"
	"cleat/overlay/control"
)

// Explain implements overlay.Explainer.
func (d *dataplane) Explain(ctx context.Context, question json.RawMessage, s control.Status, ask func(context.Context, string, json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	var r why.Request
	if err := json.Unmarshal(question, &r); err != nil {
		return nil, fmt.Errorf("read the question: %w", err)
	}
	cfg, err := networks.Config(ctx)
	if err != nil {
		return nil, err
	}
	cfg.Attach.Store = d.cfg.Attach.Store
	return r.Answer(ctx, cfg, networks.Cluster(&s, ask))
}
