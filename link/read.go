package link

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// reader is one run of Link.Spec.
type reader struct {
	*rtnl        // in the link's namespace
	origin *rtnl // in the parent's
	link   *Link
	info   *linkInfo
	*sockets
}

// newReader reads a link by sockets that outlive the reader; rep is what the kernel has
// just said of it, or nil.
func newReader(l *Link, by *sockets, rep *linkInfo) (*reader, error) {
	w := l.current()
	here, err := by.dial(w.ns)
	if err != nil {
		return nil, err
	}
	r := &reader{rtnl: here, link: l, sockets: by, info: rep}
	if rep == nil {
		if r.info, err = here.byIndex(w.index); err != nil {
			return nil, fmt.Errorf("find link %q in %s: %w", w.name, w.ns, err)
		}
	}
	r.origin, err = by.dial(l.origin)
	return r, err
}

// into fills the shared parameters and the fields of IFLA_INFO_DATA.
func (r *reader) into(a *Attrs, fields []field) error {
	*a = r.info.attrs()
	return decodeFields(fields, r.info.data, r.origin)
}

// parent is the name of the link this one stands on (IFLA_LINK).
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

// peer is the other end of a pair, or zero if it has been moved away from where
// it was made.
func (r *reader) peer(kind string) (Attrs, error) {
	there, err := r.dial(r.link.peerNS)
	if err != nil {
		return Attrs{}, err
	}
	rep, err := there.byIndex(r.info.number(unix.IFLA_LINK))
	if errors.Is(err, unix.ENODEV) {
		return Attrs{}, nil
	}
	if err != nil {
		return Attrs{}, fmt.Errorf("find the peer of link %q: %w", r.info.name, err)
	}
	if rep.kind != kind || rep.number(unix.IFLA_LINK) != r.info.index {
		return Attrs{}, nil
	}
	return rep.attrs(), nil
}
