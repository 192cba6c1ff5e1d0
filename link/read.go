package link

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// reader is the state of reading a link's parameters back.
type reader struct {
	*rtnl        // in the link's namespace
	origin *rtnl // in the parent's namespace
	link   *Link
	info   *linkInfo
	*sockets
}

// newReader returns a reader that uses sockets of the caller. info is the
// kernel's report of the link, or nil to ask for it.
func newReader(l *Link, by *sockets, info *linkInfo) (*reader, error) {
	w := l.current()
	here, err := by.dial(w.ns)
	if err != nil {
		return nil, err
	}
	r := &reader{rtnl: here, link: l, sockets: by, info: info}
	if info == nil {
		if r.info, err = here.byIndex(w.index); err != nil {
			return nil, fmt.Errorf("find link %q in %s: %w", w.name, w.ns, err)
		}
	}
	r.origin, err = by.dial(l.origin)
	return r, err
}

// parent returns the name of the link's parent (IFLA_LINK).
func (r *reader) parent() (string, error) {
	i := r.info.number(unix.IFLA_LINK)
	if i == 0 {
		return "", nil
	}
	if name := r.origin.parents[i]; name != "" {
		return name, nil
	}
	return r.origin.name(i)
}

// peer returns the kernel's report of the peer of a pair; nil if the peer has left
// the namespace in which it was created.
func (r *reader) peer(kind string) (*linkInfo, error) {
	there, err := r.dial(r.link.peerNS)
	if err != nil {
		return nil, err
	}
	peer, err := there.byIndex(r.info.number(unix.IFLA_LINK))
	if errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the peer of link %q: %w", r.info.name, err)
	}
	if peer.kind != kind || peer.number(unix.IFLA_LINK) != r.info.index {
		return nil, nil
	}
	return peer, nil
}
