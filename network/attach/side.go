package attach

import (
	"errors"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// side is one of the namespaces that an operation works in, with a socket to it
// that serves all the operation's requests.
type side struct {
	ns    *netns.NS
	place place
	*netlink.Handle
}

// newSide opens a socket to ns, which it owns from then on.
func newSide(ns *netns.NS, path string) (*side, error) {
	s := &side{ns: ns}
	var err error
	if s.place, err = placeOf(ns, path); err == nil {
		s.Handle, err = link.Handle(ns)
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return s, nil
}

// here is the side of the namespace that this process is in.
func here() (*side, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	return newSide(ns, "")
}

func (s *side) close() {
	s.Handle.Close()
	s.ns.Close()
}

// find is the link of that name; nil, nil where there is none.
func (s *side) find(name string) (netlink.Link, error) {
	l, err := s.LinkByName(name)
	if isNotFound(err) {
		return nil, nil
	}
	return l, err
}

func isNotFound(err error) bool { return errors.As(err, new(netlink.LinkNotFoundError)) }

// byIndex names a link to the netlink library by its number.
func byIndex(i int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: i}}
}

// macOf is the link's Ethernet address; zero where it has none of six bytes.
func macOf(l netlink.Link) link.MAC {
	hw := l.Attrs().HardwareAddr
	if len(hw) != len(link.MAC{}) {
		return link.MAC{}
	}
	return link.MAC(hw)
}
