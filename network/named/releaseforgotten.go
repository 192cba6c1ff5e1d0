package named

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
)

// ReleaseForgotten disconnects the containers of a network, or of all if network is "", that their engines
// have connected (Join) and whose network namespaces are gone: their engines were killed, or the machine was
// restarted. It returns what it disconnected, in words, also beside an error about others.
func ReleaseForgotten(ctx context.Context, cfg Config, network string) (released []string, err error) {
	released, _, err = releaseForgotten(ctx, cfg, network, nil)
	return released, err
}

// signs are those of endpoints that had one at the last look, by signKey.
type signs map[string]attach.Sign

// signKey tells an endpoint from others, also from one that has taken its place.
func signKey(e *Endpoint) string {
	return fmt.Sprintf("%s %d", operationName(e.Network, endpointID(e.Container)), e.Created.UnixNano())
}

// releaseForgotten is ReleaseForgotten. It looks no further at endpoints whose signs are still there, and
// returns the signs of those that stay.
func releaseForgotten(ctx context.Context, cfg Config, network string, known signs) (released []string, found signs, err error) {
	s, err := open(cfg)
	if err != nil {
		return nil, nil, err
	}
	defer s.close()
	networks := []string{network}
	if network == "" {
		if networks, err = s.store.networkNames(); err != nil {
			return nil, nil, err
		}
	}
	host, err := link.OpenListing(s.host)
	if err != nil {
		return nil, nil, err
	}
	defer host.Close()
	found = signs{}
	var errs []error
	for _, n := range networks {
		endpoints, err := s.store.Endpoints(n)
		errs = append(errs, err)
		for _, e := range endpoints {
			key := signKey(e)
			sign, gone := known[key], false
			if !sign.IsThere(host) {
				if gone, sign, err = s.releaseIfForgotten(ctx, e); err != nil {
					errs = append(errs, fmt.Errorf("disconnect %s: %w", e.label(), err))
				}
			}
			if gone {
				released = append(released, fmt.Sprintf("disconnected %s, which does not exist any more", e.label()))
			} else if sign != (attach.Sign{}) {
				found[key] = sign
			}
		}
		if network == "" { // otherwise the caller is about to use it
			errs = append(errs, RemoveUnused(ctx, cfg, n))
		}
	}
	return released, found, errors.Join(errs...)
}

// releaseIfForgotten disconnects an endpoint that is forgotten, and reports whether it did.
func (s *session) releaseIfForgotten(ctx context.Context, e *Endpoint) (released bool, exists attach.Sign, err error) {
	gone, exists, err := s.isForgotten(e)
	if err == nil && gone {
		released, err = s.disconnectForgotten(ctx, e)
	}
	return released, exists, err
}

// disconnectForgotten disconnects a forgotten endpoint, unless its engine has connected or disconnected
// the container in the meantime. It reports whether it did.
func (s *session) disconnectForgotten(ctx context.Context, e *Endpoint) (bool, error) {
	if s.store.busy(e.Network, endpointID(e.Container)) {
		return false, nil
	}
	o, err := s.begin(ctx, operationName(e.Network, endpointID(e.Container)), record{Network: e.Network, Endpoint: e})
	if err != nil {
		return false, err
	}
	now, err := s.store.Endpoint(e.Network, endpointID(e.Container))
	gone := false
	if err == nil {
		gone, _, err = s.isForgotten(now)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil || !gone {
		return false, errors.Join(err, o.end())
	}
	return true, s.disconnectIn(ctx, o, now)
}

// isForgotten reports whether an endpoint is of a container with a manager whose network namespace is
// gone. If it exists, the sign shows that, where there is one.
func (s *session) isForgotten(e *Endpoint) (bool, attach.Sign, error) {
	if e.Container.Manager == "" {
		return false, attach.Sign{}, nil
	}
	a, err := s.store.Attachment(e.AttachmentID)
	if errors.Is(err, fs.ErrNotExist) { // somebody has detached it: the namespace may exist
		ns, err := netns.Open(e.Container.Path)
		if err != nil {
			return true, attach.Sign{}, nil
		}
		return false, attach.Sign{}, ns.Close()
	}
	if err != nil {
		return false, attach.Sign{}, err
	}
	return attach.NamespaceGone(s.store.Store, a)
}
