package node

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"cleat/cli/hint"
	"cleat/overlay/control"
	"cleat/overlay/ui"
)

// noMetrics in place of an address means that no figures are served.
const noMetrics = "none"

// metricsAddress returns where figures are to be served; "" means nowhere.
func (f *upFlags) metricsAddress() string {
	if f.metrics == noMetrics {
		return ""
	}
	return f.metrics
}

// checkMetrics returns an error unless figures can be served at the address that was typed.
func (f *upFlags) checkMetrics() error {
	at := f.metricsAddress()
	if at == "" {
		return nil
	}
	const example = "e.g. --metrics 127.0.0.1:7792, or --metrics none"
	host, port, err := net.SplitHostPort(at)
	if n, badPort := strconv.ParseUint(port, 10, 16); err != nil || badPort != nil || n == 0 || host != "" && net.ParseIP(host) == nil {
		return hint.With(hint.Usagef("--metrics %s: want an address of this host and a port", at), example)
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return hint.With(fmt.Errorf("listen for Prometheus: %w", err), example)
	}
	return l.Close()
}

// metricsAgain is the time between attempts to listen at an address that this host does not have, or not yet.
const metricsAgain = 5 * time.Second

// serveMetrics serves figures until ctx ends. An address at which it can't listen keeps the node from nothing else.
func serveMetrics(ctx context.Context, at string, c *control.Client, log func(string, ...any)) error {
	for said := ""; ; {
		l, err := net.Listen("tcp", at)
		if err == nil {
			return serveHTTP(ctx, l, ui.Metrics(c))
		}
		if text := err.Error(); text != said {
			said = text
			log("figures for Prometheus are not served: %v", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(metricsAgain):
		}
	}
}
