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

// setPath is the body of POST /v1/paths/NAME.
type setPath struct {
	State string `json:"state"` // "up" or "down"
}

// newPath is the body of PUT /v1/paths/NAME: spec.Path without its name.
type newPath struct {
	Device         string     `json:"device,omitempty"`
	Local          netip.Addr `json:"local,omitzero"`
	LocalPort      uint16     `json:"local_port,omitempty"` // 0: the tunnel's
	Remote         string     `json:"remote"`               // an address; with a port where it isn't the tunnel's
	RateBitsPerSec int64      `json:"rate_bits_per_second,omitempty"`
	Weight         int        `json:"weight,omitempty"` // 0: 1
	MTUBytes       int        `json:"mtu_bytes,omitempty"`
	State          string     `json:"state,omitempty"` // "up" or "down"; "": "up"
}

// bodyOf is the request that adds p.
func bodyOf(p spec.Path) newPath {
	n := newPath{
		Device: p.Device, Local: p.Local, LocalPort: p.LocalPort, Remote: p.Remote.String(),
		RateBitsPerSec: p.RateBitsPerSec, Weight: p.Weight, MTUBytes: p.MTUBytes, State: "up",
	}
	if p.Remote.Port() == 0 {
		n.Remote = p.Remote.Addr().String()
	}
	if p.Down {
		n.State = "down"
	}
	return n
}

// path is what a request to add a path says.
func (n newPath) path(name string) (spec.Path, error) {
	up, err := isUp(n.State)
	if n.State == "" {
		up, err = true, nil
	}
	if err != nil {
		return spec.Path{}, err
	}
	remote, err := ParseRemote(n.Remote)
	if err != nil {
		return spec.Path{}, badRequest("%v", err)
	}
	return spec.Path{
		Name: name, Device: n.Device, Local: n.Local, LocalPort: n.LocalPort, Remote: remote,
		RateBitsPerSec: n.RateBitsPerSec, Weight: n.Weight, MTUBytes: n.MTUBytes, Down: !up,
	}, nil
}

// ParseRemote reads the other end of a path: an IP address, with a port where it
// isn't the tunnel's, which is 0 here.
func ParseRemote(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, 0), nil
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("remote %q: want an IP address, with its port if it is another than the tunnel's: 198.51.100.2:4755, [2001:db8::1]:4755", text)
	}
	return a, nil
}

// isUp reads a path's state.
func isUp(state string) (bool, error) {
	if state != "up" && state != "down" {
		return false, badRequest("state %q: want up or down", state)
	}
	return state == "up", nil
}

// handler answers the requests that doc.go lists.
func handler(t Target) http.Handler {
	mux := http.NewServeMux()
	for path, methods := range map[string]map[string]http.HandlerFunc{
		"/v1/status": {http.MethodGet: func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, statusOf(t, time.Now()))
		}},
		"/v1/paths/{name}": {
			http.MethodPost:   does(func(r *http.Request) error { return setPathOf(t, r) }),
			http.MethodPut:    does(func(r *http.Request) error { return addPathOf(t, r) }),
			http.MethodDelete: does(func(r *http.Request) error { return t.RemovePath(r.PathValue("name")) }),
		},
		"/v1/reload": {http.MethodPost: func(w http.ResponseWriter, _ *http.Request) { reload(w, t) }},
		"/v1/stop":   {http.MethodPost: func(w http.ResponseWriter, _ *http.Request) { stop(w, t) }},
		"/metrics":   {http.MethodGet: MetricsHandler(t).ServeHTTP},
	} {
		for method, h := range methods {
			mux.HandleFunc(method+" "+path, h)
		}
		mux.HandleFunc(path, notAllowed(slices.Sorted(maps.Keys(methods))))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, &Error{Status: http.StatusNotFound, Message: fmt.Sprintf("there is nothing at %s", r.URL.Path)})
	})
	return mux
}

// notAllowed refuses all methods but those that a path has.
func notAllowed(methods []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		allow := strings.Join(methods, ", ")
		w.Header().Set("Allow", allow)
		refuse(w, &Error{Status: http.StatusMethodNotAllowed, Message: fmt.Sprintf("%s %s: want %s", r.Method, r.URL.Path, allow)})
	}
}

// does answers with nothing when do has done its work.
func does(do func(*http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := do(r); err != nil {
			refuse(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func setPathOf(t Target, r *http.Request) error {
	var body setPath
	if err := read(r, &body); err != nil {
		return err
	}
	up, err := isUp(body.State)
	if err != nil {
		return err
	}
	return t.SetPath(r.PathValue("name"), up)
}

func addPathOf(t Target, r *http.Request) error {
	var body newPath
	if err := read(r, &body); err != nil {
		return err
	}
	p, err := body.path(r.PathValue("name"))
	if err != nil {
		return err
	}
	return t.AddPath(p)
}

func reload(w http.ResponseWriter, t Target) {
	r, err := t.Reload()
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, Reloaded{orEmpty(r.Changed), orEmpty(r.Refused)})
}

// stop answers before it stops: afterwards there may be nobody to do so.
func stop(w http.ResponseWriter, t Target) {
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusNoContent)
	// A client that has gone meanwhile wants it stopped all the same.
	_ = http.NewResponseController(w).Flush()
	t.Stop()
}

// read reads the body of a request: one JSON object with known fields.
func read(r *http.Request, into any) error {
	in := json.NewDecoder(http.MaxBytesReader(nil, r.Body, requestBytes))
	in.DisallowUnknownFields()
	if err := in.Decode(into); err != nil {
		return badRequest("read request: %v", err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return badRequest("read request: more than one object")
	}
	return nil
}

// answer writes a JSON document.
func answer(w http.ResponseWriter, status int, document any) {
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		refuse(w, fmt.Errorf("write answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(text, '\n')) // a client that has gone needs no answer
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	e := errorOf(err)
	answer(w, e.Status, e)
}

// orEmpty makes JSON's [] of a list without elements.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
