package slirp4netns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"cleat/internal/localsock"
	"cleat/sandbox"
)

// forwarder opens and closes ports. A *sandbox.Network implements it.
type forwarder interface {
	Forward(sandbox.Forward) (netip.AddrPort, error)
	Unforward(sandbox.Forward) error
}

// api serves requests on the API socket. It reads several requests at once and executes
// one at a time.
type api struct {
	ports forwarder
	guest netip.Addr // default guest address of forwards

	mu      sync.Mutex // held while a request is executed
	entries []entry
	lastID  int
}

// entry is a forward as list_hostfwd returns it.
type entry struct {
	ID        int        `json:"id"`
	Proto     string     `json:"proto"`
	HostAddr  netip.Addr `json:"host_addr"`
	HostPort  uint16     `json:"host_port"`
	GuestAddr netip.Addr `json:"guest_addr"`
	GuestPort uint16     `json:"guest_port"`
}

// Limits on what clients can make the process hold.
const (
	// largestRequest is in bytes; a request must be shorter, as in slirp4netns.
	largestRequest = 4096
	// patience is how long a client may take to send its request and read the answer.
	patience = 5 * time.Second
	// mostClients are served at once, so that a silent client does not block the others;
	// further ones wait in the kernel's queue. Engines send one request at a time.
	mostClients = 32
	// mostForwards are open at once; each is a socket and a line of each list. This is
	// enough for a container that publishes a thousand ports for TCP and UDP.
	mostForwards = 4096
)

// listen opens the socket. It replaces an existing socket at the path.
func listen(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// serve serves requests until ctx ends, and then closes the listener.
func (a *api) serve(ctx context.Context, l net.Listener) error {
	if err := localsock.Serve(ctx, l, mostClients, a.converse); err != nil {
		return fmt.Errorf("accept on the API socket: %w", err)
	}
	return nil
}

// converse reads one request and answers it.
func (a *api) converse(c net.Conn) {
	if c.SetDeadline(time.Now().Add(patience)) != nil {
		return
	}
	var reply any
	request, err := readRequest(c)
	if err == nil {
		reply, err = a.answer(request)
	}
	if err != nil {
		reply = map[string]any{"error": map[string]string{"desc": "bad request: " + err.Error()}}
	}
	text, _ := json.Marshal(reply) // a reply can always be encoded
	c.Write(text)                  // an error means that the client is gone
}

// readRequest reads until there is a complete or an invalid JSON value. Clients need not
// close their end.
func readRequest(r io.Reader) ([]byte, error) {
	buf := make([]byte, 0, largestRequest)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case len(buf) == cap(buf):
			return nil, errors.New("too large message")
		case err != nil || !cutShort(buf):
			return buf, nil
		}
	}
}

// cutShort reports whether b may be the beginning of a JSON value.
func cutShort(b []byte) bool {
	err := json.NewDecoder(bytes.NewReader(b)).Decode(&json.RawMessage{})
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func (a *api) answer(request []byte) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !json.Valid(request) {
		return nil, errors.New("cannot parse JSON")
	}
	var call struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(request, &call); err != nil || call.Execute == "" {
		return nil, errors.New("no execute found")
	}
	switch call.Execute {
	case "add_hostfwd":
		return named("add_hostfwd", call.Arguments, a.add)
	case "remove_hostfwd":
		return named("remove_hostfwd", call.Arguments, a.remove)
	case "list_hostfwd":
		entries := slices.Clone(a.entries)
		if entries == nil {
			entries = []entry{}
		}
		// The manual puts the list inside "return", the program beside it.
		return map[string]any{"return": map[string]any{"entries": entries}, "entries": entries}, nil
	}
	return nil, errors.New("unknown execute")
}

// named decodes the arguments of a call, and puts the call's name in front of errors.
func named[A any](name string, raw json.RawMessage, do func(A) (any, error)) (any, error) {
	var args A
	if len(raw) > 0 {
		wrong := new(json.UnmarshalTypeError)
		if err := json.Unmarshal(raw, &args); errors.As(err, &wrong) && wrong.Field != "" {
			return nil, fmt.Errorf("%s: bad arguments.%s", name, wrong.Field)
		} else if err != nil {
			return nil, fmt.Errorf("%s: bad arguments", name)
		}
	}
	reply, err := do(args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return map[string]any{"return": reply}, nil
}

type addArguments struct {
	Proto     string `json:"proto"`
	HostAddr  string `json:"host_addr"`
	HostPort  uint16 `json:"host_port"`
	GuestAddr string `json:"guest_addr"`
	GuestPort uint16 `json:"guest_port"`
}

func (a *api) add(args addArguments) (any, error) {
	e := entry{Proto: args.Proto, HostPort: args.HostPort, GuestPort: args.GuestPort}
	var ok bool
	if args.Proto != "tcp" && args.Proto != "udp" {
		return nil, errors.New("bad arguments.proto")
	}
	if e.HostAddr, ok = address4(args.HostAddr, netip.IPv4Unspecified()); !ok {
		return nil, errors.New("bad arguments.host_addr")
	}
	if e.HostPort == 0 {
		return nil, errors.New("bad arguments.host_port")
	}
	if e.GuestAddr, ok = address4(args.GuestAddr, a.guest); !ok {
		return nil, errors.New("bad arguments.guest_addr")
	}
	if e.GuestPort == 0 {
		return nil, errors.New("bad arguments.guest_port")
	}
	if len(a.entries) >= mostForwards {
		return nil, fmt.Errorf("all %d possible forwards are in use", mostForwards)
	}
	if _, err := a.ports.Forward(e.forward()); err != nil {
		return nil, fmt.Errorf("slirp_add_hostfwd failed: %w", err)
	}
	a.lastID++
	e.ID = a.lastID
	a.entries = append(a.entries, e)
	return map[string]int{"id": e.ID}, nil
}

type removeArguments struct {
	ID int `json:"id"`
}

func (a *api) remove(args removeArguments) (any, error) {
	i := slices.IndexFunc(a.entries, func(e entry) bool { return e.ID == args.ID })
	if i < 0 {
		return nil, errors.New("bad arguments.id")
	}
	if err := a.ports.Unforward(a.entries[i].forward()); err != nil {
		return nil, fmt.Errorf("slirp_remove_hostfwd failed: %w", err)
	}
	a.entries = slices.Delete(a.entries, i, i+1)
	return struct{}{}, nil
}

func (e entry) forward() sandbox.Forward {
	protocol := sandbox.TCP
	if e.Proto == "udp" {
		protocol = sandbox.UDP
	}
	return sandbox.Forward{
		Protocol: protocol,
		Listen:   netip.AddrPortFrom(e.HostAddr, e.HostPort),
		To:       netip.AddrPortFrom(e.GuestAddr, e.GuestPort),
	}
}

// address4 parses an IPv4 address; an empty text stands for otherwise.
func address4(text string, otherwise netip.Addr) (netip.Addr, bool) {
	if text == "" {
		return otherwise, true
	}
	a, err := netip.ParseAddr(text)
	return a, err == nil && a.Is4()
}
