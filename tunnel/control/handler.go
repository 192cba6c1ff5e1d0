package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/tunnel/spec"
)

// setPathBody is the body of POST /v1/paths/NAME.
type setPathBody struct {
	State string `json:"state"` // "up" or "down"
}

// addPathBody is the body of PUT /v1/paths/NAME: spec.Path without its name.
type addPathBody struct {
	Device         string     `json:"device,omitempty"`
	Local          netip.Addr `json:"local,omitzero"`
	LocalPort      uint16     `json:"local_port,omitempty"` // 0: the tunnel's
	Remote         string     `json:"remote,omitempty"`     // an address, with a port if it differs from the tunnel's; "": learned
	RateBitsPerSec int64      `json:"rate_bits_per_second,omitempty"`
	Weight         int        `json:"weight,omitempty"` // 0 means 1
	MTUBytes       int        `json:"mtu_bytes,omitempty"`
	Metered        bool       `json:"metered,omitempty"`
	State          string     `json:"state,omitempty"` // "up" or "down"; "" means "up"
}

func bodyOf(p spec.Path) addPathBody {
	n := addPathBody{
		Device: p.Device, Local: p.Local, LocalPort: p.LocalPort, Remote: p.Remote.String(),
		RateBitsPerSec: p.RateBitsPerSec, Weight: p.Weight, MTUBytes: p.MTUBytes, Metered: p.Metered, State: "up",
	}
	switch {
	case !p.Remote.Addr().IsValid():
		n.Remote = ""
	case p.Remote.Port() == 0:
		n.Remote = p.Remote.Addr().String()
	}
	if p.Down {
		n.State = "down"
	}
	return n
}

func (n addPathBody) path(name string) (spec.Path, error) {
	up, err := parseState(n.State)
	if n.State == "" {
		up, err = true, nil
	}
	if err != nil {
		return spec.Path{}, err
	}
	var remote netip.AddrPort
	if n.Remote != "" {
		if remote, err = ParseRemote(n.Remote); err != nil {
			return spec.Path{}, badRequest("%v", err)
		}
	}
	return spec.Path{
		Name: name, Device: n.Device, Local: n.Local, LocalPort: n.LocalPort, Remote: remote,
		RateBitsPerSec: n.RateBitsPerSec, Weight: n.Weight, MTUBytes: n.MTUBytes, Metered: n.Metered, Down: !up,
	}, nil
}

// ParseRemote parses the other end of a path: an IP address, with a port if it differs
// from the tunnel's. Without a port, the port is 0.
func ParseRemote(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, 0), nil
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("remote %q: want an IP address, with a port if it differs from the tunnel's: 198.51.100.2:4755, [2001:db8::1]:4755", text)
	}
	return a, nil
}

// parseState parses a path's state. It reports whether the path is up.
func parseState(state string) (bool, error) {
	if state != "up" && state != "down" {
		return false, badRequest("state %q: want up or down", state)
	}
	return state == "up", nil
}

// handler handles the requests that the package documentation lists.
func handler(t Target) http.Handler {
	mux := http.NewServeMux()
	for path, methods := range map[string]map[string]http.HandlerFunc{
		"/v1/status": {http.MethodGet: func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, statusOf(t, time.Now()))
		}},
		"/v1/paths/{name}": {
			http.MethodPost:   noContent(func(r *http.Request) error { return handleSetPath(t, r) }),
			http.MethodPut:    noContent(func(r *http.Request) error { return handleAddPath(t, r) }),
			http.MethodDelete: noContent(func(r *http.Request) error { return t.RemovePath(r.PathValue("name")) }),
		},
		"/v1/reload": {http.MethodPost: func(w http.ResponseWriter, _ *http.Request) { handleReload(w, t) }},
		"/v1/stop":   {http.MethodPost: func(w http.ResponseWriter, _ *http.Request) { handleStop(w, t) }},
		"/metrics":   {http.MethodGet: MetricsHandler(t).ServeHTTP},
	} {
		for method, h := range methods {
			mux.HandleFunc(method+" "+path, h)
		}
		mux.HandleFunc(path, notAllowed(slices.Sorted(maps.Keys(methods))))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answerError(w, &Error{Status: http.StatusNotFound, Message: fmt.Sprintf("no such resource: %s", r.URL.Path)})
	})
	return mux
}

func notAllowed(methods []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		allow := strings.Join(methods, ", ")
		w.Header().Set("Allow", allow)
		answerError(w, &Error{Status: http.StatusMethodNotAllowed, Message: fmt.Sprintf("%s %s: want %s", r.Method, r.URL.Path, allow)})
	}
}

// noContent returns a handler that calls do and answers without a body.
func noContent(do func(*http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := do(r); err != nil {
			answerError(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func handleSetPath(t Target, r *http.Request) error {
	var body setPathBody
	if err := readBody(r, &body); err != nil {
		return err
	}
	up, err := parseState(body.State)
	if err != nil {
		return err
	}
	return t.SetPath(r.PathValue("name"), up)
}

func handleAddPath(t Target, r *http.Request) error {
	var body addPathBody
	if err := readBody(r, &body); err != nil {
		return err
	}
	p, err := body.path(r.PathValue("name"))
	if err != nil {
		return err
	}
	return t.AddPath(p)
}

func handleReload(w http.ResponseWriter, t Target) {
	r, err := t.Reload()
	if err != nil {
		answerError(w, err)
		return
	}
	answer(w, http.StatusOK, r)
}

// handleStop answers before it stops the tunnel: afterwards nobody may be left to answer.
func handleStop(w http.ResponseWriter, t Target) {
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusNoContent)
	// Stop the tunnel even if the client has gone.
	_ = http.NewResponseController(w).Flush()
	t.Stop()
}

// readBody reads the body of a request: one JSON object with known fields.
func readBody(r *http.Request, into any) error {
	in := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxRequestBytes))
	in.DisallowUnknownFields()
	if err := in.Decode(into); err != nil {
		return badRequest("read request: %v", err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return badRequest("read request: more than one object")
	}
	return nil
}

func answer(w http.ResponseWriter, status int, document any) {
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		answerError(w, fmt.Errorf("write answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(text, '\n')) // an error means that the client has gone
}

func answerError(w http.ResponseWriter, err error) {
	e := errorOf(err)
	answer(w, e.Status, e)
}
