package link

import (
	"errors"
	"fmt"
	"net/netip"

	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrExists says that a link of that name is already there.
var ErrExists = errors.New("link exists")

// ErrConflict says that another link has the same identity in the kernel under
// another name: the same VNI and port, the same VLAN of one parent, the same
// tunnel ends.
var ErrConflict = errors.New("another link has the same parameters")

// Spec is what a link should be: comparable data, one type a kind. The zero
// value of every parameter means the kernel's default.
type Spec interface {
	// Kind is the name of the kind as in Kinds; mostly the kernel's
	// (IFLA_INFO_KIND), e.g. "macvlan".
	Kind() string
	// Validate returns a *ParamError for the first parameter that no kernel
	// would accept.
	Validate() error

	// attrs are the parameters all kinds share.
	attrs() Attrs
	// create makes the link; on error nothing of it stays.
	create(m *maker) error
	// read converts what the kernel reports back into a Spec of the same type.
	read(r *reader) (Spec, error)
}

// Attrs are the parameters that every kind has.
type Attrs struct {
	Name       string // 1…15 bytes, no '/' or space
	MTU        int    // bytes; 0: the kernel's default for the kind
	MAC        MAC    // zero: the kernel's choice
	TxQueueLen int    // packets; 0: the kernel's default
}

func (a Attrs) attrs() Attrs { return a }

// params are the shared parameters; they are encoded by attributes, not here.
func (a *Attrs) params() []field {
	return []field{
		{name: "name", val: device{p: &a.Name, required: true}},
		{name: "mtu", val: u32(&a.MTU).in(68, 65535)},
		{name: "mac", val: hardware{p: &a.MAC}},
		{name: "txqueuelen", val: u32(&a.TxQueueLen)},
	}
}

// Target says where a new link ends up. The zero Target keeps it where it is
// made.
type Target struct {
	NS     *netns.NS // nil: the namespace given to Create
	PeerNS *netns.NS // of the other end, for veth and netkit; nil: as above
}

// in fills what to leaves open.
func (to Target) in(ns *netns.NS) Target {
	if to.NS == nil {
		to.NS = ns
	}
	if to.PeerNS == nil {
		to.PeerNS = ns
	}
	return to
}

// Link is a link in the kernel. It is safe for concurrent use. It refers to
// the namespaces it was given and must be closed before they are.
type Link struct {
	spec   Spec
	ns     *netns.NS // where it is
	origin *netns.NS // where its parent is
	peerNS *netns.NS // where its other end was made
	name   string
	index  int
	done   func() error // what else Close has to end, for links that programs of ours make
}

// Create makes the link that spec describes. It looks up parents in ns, which
// is also where a tunnel's outer packets go. On error nothing stays behind, and
// what was there before is untouched. A parameter that makes no sense is a
// *ParamError; a name already in use is ErrExists; an identity already in use
// is ErrConflict; what the kernel, the machine or our privilege can't do is a
// *Lack.
func Create(ns *netns.NS, spec Spec, to Target) (*Link, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	m := &maker{ns: ns, spec: spec, to: to.in(ns)}
	if err := spec.create(m); err != nil {
		return nil, m.explain(err)
	}
	l, err := Find(m.to.NS, spec.attrs().Name)
	if err != nil {
		return nil, err
	}
	l.spec, l.origin, l.peerNS, l.done = spec, ns, m.to.PeerNS, m.done
	err = l.configure()
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return nil, errors.Join(m.explain(err), l.Close())
	}
	return l, nil
}

// check reads the link back and compares it with what was asked for.
func (l *Link) check() error {
	got, err := l.Spec()
	if err != nil {
		return err
	}
	return verify(l.spec, got)
}

// configurer is a Spec whose link needs more than one message to the kernel.
type configurer interface {
	configure(l *Link) error
}

func (l *Link) configure() error {
	if c, ok := l.spec.(configurer); ok {
		return c.configure(l)
	}
	return nil
}

// Find is the handle of a link that exists already, of whatever kind. Its Spec
// can't be read.
func Find(ns *netns.NS, name string) (*Link, error) {
	r, err := dial(ns)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	i, err := r.index(name)
	if err != nil {
		return nil, err
	}
	return &Link{ns: ns, origin: ns, name: name, index: i}, nil
}

// Handle is a route netlink socket that talks to ns from any thread. Close it.
func Handle(ns *netns.NS) (*netlink.Handle, error) {
	var h *netlink.Handle
	err := ns.Do(func() error {
		var err error
		h, err = netlink.NewHandle()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", ns, err)
	}
	return h, nil
}

// Name is the link's name, NS the namespace it is in, Index its number there.
func (l *Link) Name() string  { return l.name }
func (l *Link) NS() *netns.NS { return l.ns }
func (l *Link) Index() int    { return l.index }

// Spec reads the link's parameters back from the kernel, in the type the link
// was created with.
func (l *Link) Spec() (Spec, error) {
	if l.spec == nil {
		return nil, fmt.Errorf("link %q was not made here: %w", l.name, errors.ErrUnsupported)
	}
	r, err := newReader(l)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	got, err := l.spec.read(r)
	if err != nil {
		return nil, fmt.Errorf("read link %q: %w", l.name, err)
	}
	return got, nil
}

// Up brings the link up.
func (l *Link) Up() error {
	return l.with(func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.LinkSetUp(nl); err != nil {
			return fmt.Errorf("bring link %q up: %w", l.name, err)
		}
		return nil
	})
}

// AddAddr gives the link an address. IPv6 addresses skip duplicate address
// detection, so that they can be used at once.
func (l *Link) AddAddr(p netip.Prefix) error {
	return l.with(func(h *netlink.Handle, nl netlink.Link) error {
		a, err := netlink.ParseAddr(p.String())
		if err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
		if p.Addr().Is6() {
			a.Flags = ifaFNoDAD
		}
		if err := h.AddrAdd(nl, a); err != nil {
			return fmt.Errorf("add address %s to link %q: %w", p, l.name, err)
		}
		return nil
	})
}

// ifaFNoDAD is IFA_F_NODAD (include/uapi/linux/if_addr.h).
const ifaFNoDAD = 0x02

// SetMaster makes the link a port of a bridge in the same namespace.
func (l *Link) SetMaster(bridge string) error {
	return l.with(func(h *netlink.Handle, nl netlink.Link) error {
		br, err := h.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("find bridge %q: %w", bridge, err)
		}
		if err := h.LinkSetMaster(nl, br); err != nil {
			return fmt.Errorf("make link %q a port of %q: %w", l.name, bridge, err)
		}
		return nil
	})
}

// SetMTU changes the MTU, in bytes.
func (l *Link) SetMTU(mtu int) error {
	return l.with(func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.LinkSetMTU(nl, mtu); err != nil {
			return fmt.Errorf("set mtu of link %q to %d: %w", l.name, mtu, err)
		}
		return nil
	})
}

// Close removes the link from the kernel. A link that is gone already is not
// an error, nor is a namespace that is closed.
func (l *Link) Close() error {
	err := l.remove()
	if l.done != nil {
		err = errors.Join(err, l.done())
	}
	return err
}

func (l *Link) remove() error {
	r, err := dial(l.ns)
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.delLink(l.index); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %q: %w", l.name, err)
	}
	return nil
}

// with runs f with a handle into the link's namespace and the kernel's view of
// the link.
func (l *Link) with(f func(*netlink.Handle, netlink.Link) error) error {
	h, err := Handle(l.ns)
	if err != nil {
		return err
	}
	defer h.Close()
	nl, err := h.LinkByIndex(l.index)
	if err != nil {
		return fmt.Errorf("find link %q in %s: %w", l.name, l.ns, err)
	}
	return f(h, nl)
}
