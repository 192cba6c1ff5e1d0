package spanned

import (
	"context"
	"net"
	"net/http"
	"time"

	"cleat/netns"
)

// askTimeout is of one request to a program on the machine.
const askTimeout = time.Second

// clientIn returns a client that connects from a network namespace.
func clientIn(ns *netns.NS) *http.Client {
	return &http.Client{Timeout: askTimeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, to string) (c net.Conn, err error) {
		err = ns.Do(func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, to); return err })
		return c, err
	}}}
}
