package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// ErrExists says that a link of that name is already there.
var ErrExists = errors.New("link exists")

// Spec is what a link should be: comparable data, one type a kind. The zero
// value of every parameter means the kernel's default.
type Spec interface {
	// Kind is the kernel's name of the kind (IFLA_INFO_KIND), e.g. "macvlan".
	Kind() string
	// Validate returns a *ParamError for the first parameter that no kernel
	// would accept.
	Validate() error

	// attrs are the parameters all kinds share.
	attrs() Attrs
	// create makes the link through h, which talks to the namespace where the
	// parent is, and puts it into to.
	create(h *netlink.Handle, to Target) error
	// read converts what the kernel reports back into a Spec of the same type.
	read(h *netlink.Handle, l netlink.Link) (Spec, error)
}

// Attrs are the parameters that every kind has.
type Attrs struct {
	Name       string // 1…15 bytes, no '/' or space
	MTU        int    // bytes; 0: the kernel's default for the kind
	MAC        MAC    // zero: the kernel's choice
	TxQueueLen int    // packets; 0: the kernel's default
}

func (a Attrs) attrs() Attrs { return a }

// Target says where a new link ends up. The zero Target keeps it where it is
// made.
type Target struct {
	NS     *netns.NS // nil: the namespace given to Create
	PeerNS *netns.NS // of the other end, for veth and netkit; nil: as above
}

// Link is a link in the kernel. It is safe for concurrent use.
type Link struct {
	spec  Spec
	ns    *netns.NS
	name  string
	index int
}

// Create makes the link that spec describes. It looks up parents in ns. On
// error nothing stays behind. A parameter that makes no sense is a
// *ParamError, a name already in use is ErrExists, and what the kernel can't do
// is a *Lack.
func Create(ns *netns.NS, spec Spec, to Target) (*Link, error) {
	if err := validate(spec); err != nil {
		return nil, err
	}
	if to.NS == nil {
		to.NS = ns
	}
	if to.PeerNS == nil {
		to.PeerNS = ns
	}
	h, err := Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	name := spec.attrs().Name
	if err := spec.create(h, to); err != nil {
		return nil, kernelError(spec, err)
	}
	l, err := Find(to.NS, name)
	if err != nil {
		return nil, err
	}
	l.spec = spec
	return l, nil
}

func validate(spec Spec) error {
	a := spec.attrs()
	if err := checkName(spec.Kind(), "name", a.Name); err != nil {
		return err
	}
	if a.MTU < 0 || a.MTU > 65535 && spec.Kind() != "loopback" {
		return &ParamError{Kind: spec.Kind(), Param: "mtu", Value: fmt.Sprint(a.MTU), Allowed: "0 (the kernel's default) or 68…65535 bytes"}
	}
	if a.TxQueueLen < 0 {
		return &ParamError{Kind: spec.Kind(), Param: "txqueuelen", Value: fmt.Sprint(a.TxQueueLen), Allowed: "0 (the kernel's default) or more, in packets"}
	}
	return spec.Validate()
}

// Find is the handle of a link that exists already, of whatever kind; its Spec
// is read from the kernel only for kinds that Read knows.
func Find(ns *netns.NS, name string) (*Link, error) {
	h, err := Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	nl, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find link %q in %s: %w", name, ns, err)
	}
	return &Link{ns: ns, name: name, index: nl.Attrs().Index}, nil
}

// Handle is a route netlink socket that talks to ns from any thread. Close it.
func Handle(ns *netns.NS) (*netlink.Handle, error) {
	h := &netlink.Handle{}
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
	var got Spec
	err := l.with(func(h *netlink.Handle, nl netlink.Link) error {
		var err error
		got, err = l.spec.read(h, nl)
		return err
	})
	return got, err
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
// an error.
func (l *Link) Close() error {
	h, err := Handle(l.ns)
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	nl, err := h.LinkByName(l.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %q in %s: %w", l.name, l.ns, err)
	}
	if err := h.LinkDel(nl); err != nil {
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
