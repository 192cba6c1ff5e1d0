package usernettest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
)

// http2 sends many concurrent requests over one connection. Each has a body that the
// server returns.
func http2(x *T, s *Env, f Family) {
	l, to := x.service(s, Out, f)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Write(b)
	}))
	server.Listener.Close()
	server.Listener = l
	server.EnableHTTP2 = true
	server.StartTLS()
	x.Cleanup(server.Close)
	client := &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"},
		DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
			at, err := netip.ParseAddrPort(addr)
			if err != nil {
				return nil, err
			}
			return x.dial(s.Container, network, at)
		},
	}}
	defer client.CloseIdleConnections()
	const requests = 40
	done := make(chan error, requests)
	for i := range requests {
		go func() { done <- post(x.ctx, client, fmt.Sprintf("https://%s/", to), randomBytes(i*10_000)) }()
	}
	var errs []error
	for range requests {
		errs = append(errs, <-done)
	}
	x.Must(errors.Join(errs...))
}

func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.ProtoMajor != 2 || !bytes.Equal(got, body) {
		return fmt.Errorf("request of %d bytes: %s, %d bytes returned", len(body), resp.Proto, len(got))
	}
	return nil
}
