package ui

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/overlay/control"
)

//go:embed page
var files embed.FS

// policy lets the page load what this server has, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

const (
	askEvery  = time.Second     // the node, at most
	askWithin = 5 * time.Second // of the node; it waits for other hosts up to 2 s
)

// Source has the picture: a *control.Client.
type Source interface {
	Picture(ctx context.Context, own bool) (control.Picture, error)
}

// Config configures a Handler.
type Config struct {
	Source Source
	// Names are host names of this machine. Requests for others are refused, except for IP addresses and localhost.
	Names []string
}

// Handler returns the server of the page.
func Handler(c Config) http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the name is valid
	}
	a := &asker{source: c.Source}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /picture", a.serve)
	return guard(c.Names, mux)
}

// guard refuses requests for names of other machines, and sets the headers of all answers.
func guard(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !isOwn(r.Host, names) {
			http.Error(w, "this is not the server of "+r.Host+": ask for an IP address of this machine, or for localhost", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOwn reports whether the host of a request is an IP address, localhost or one of the names.
func isOwn(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "localhost" || slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, host) })
}

// failure is the answer when there is no picture.
type failure struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

// asker asks the node for pictures.
type asker struct {
	source Source

	mu   sync.Mutex // held while the node is asked
	at   time.Time
	text []byte
	code int
}

func (a *asker) serve(w http.ResponseWriter, r *http.Request) {
	text, code := a.picture(r.Context())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text)
}

func (a *asker) picture(ctx context.Context) (text []byte, code int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) < askEvery {
		return a.text, a.code
	}
	// The answer is for others too, so it does not end with one of them.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWithin)
	defer cancel()
	p, err := a.source.Picture(ctx, false)
	if err == nil {
		a.code = http.StatusOK
		a.text, err = json.Marshal(p)
	}
	if err != nil {
		a.code = http.StatusServiceUnavailable
		a.text, _ = json.Marshal(explain(err))
	}
	a.at = time.Now()
	return a.text, a.code
}

func explain(err error) failure {
	f := failure{Error: err.Error()}
	var byNode *control.Error
	switch {
	case errors.Is(err, control.ErrNotRunning):
		f.Hint = "cleat-node up"
	case errors.Is(err, context.DeadlineExceeded):
		f.Error = "cleat-node does not answer on this host"
	case errors.As(err, &byNode):
		f.Hint = byNode.Hint
	}
	return f
}
