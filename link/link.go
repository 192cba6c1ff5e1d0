package link

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

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
	create(m *creator) error
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
		{name: "mtu", val: u32(&a.MTU).between(68, 65535)},
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
func (to Target) withDefault(ns *netns.NS) Target {
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
	origin *netns.NS    // where its parent is
	peerNS *netns.NS    // where its other end was made
	remove func() error // how to end it, where it is not the kernel's own to end
	peer   int          // number of its other end, of a pair, where that was made

	mu sync.Mutex // guards where
	location
}

// where is what Move changes.
type location struct {
	ns    *netns.NS
	name  string
	index int
}

// at is where the link is now.
func (l *Link) current() location {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.location
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
	m := &creator{ns: ns, spec: spec, to: to.withDefault(ns)}
	defer m.close()
	if err := spec.create(m); err != nil {
		return nil, m.explain(err)
	}
	l, rep, err := findBy(&m.sockets, m.to.NS, spec.attrs().Name)
	if err != nil && m.remove != nil {
		err = errors.Join(err, m.remove())
	}
	if err != nil {
		return nil, err
	}
	l.spec, l.origin, l.peerNS, l.remove = spec, ns, m.to.PeerNS, m.remove
	if _, ok := spec.(paired); ok {
		l.peer = rep.number(unix.IFLA_LINK)
	}
	if err := l.finish(&m.sockets, rep); err != nil {
		return nil, errors.Join(m.explain(err), l.Close())
	}
	return l, nil
}

// configurer is a Spec whose link needs more than one message to the kernel.
type configurer interface {
	configure(l *Link) error
}

// finish is what there is to do once the kernel has the link: configure it and
// see whether it is what was asked for. rep is what the kernel says of it so far.
func (l *Link) finish(by *sockets, rep *linkInfo) error {
	if c, ok := l.spec.(configurer); ok {
		if err := c.configure(l); err != nil {
			return err
		}
		rep = nil
	}
	got, err := l.specBy(by, rep)
	if err != nil {
		return err
	}
	return verify(l.spec, got)
}

// Find is the handle of a link that exists already, of whatever kind. Its Spec
// can't be read.
func Find(ns *netns.NS, name string) (*Link, error) {
	var by sockets
	defer by.close()
	l, _, err := findBy(&by, ns, name)
	return l, err
}

func findBy(by *sockets, ns *netns.NS, name string) (*Link, *linkInfo, error) {
	r, err := by.dial(ns)
	if err != nil {
		return nil, nil, err
	}
	rep, err := r.find(name)
	if err != nil {
		return nil, nil, fmt.Errorf("find link %q in %s: %w", name, ns, err)
	}
	return &Link{origin: ns, peerNS: ns, location: location{ns, name, rep.index}}, rep, nil
}

// Handle is a route netlink socket that talks to ns from any thread. Close it.
func Handle(ns *netns.NS) (*netlink.Handle, error) {
	var h *netlink.Handle
	err := ns.Do(func() error {
		var err error
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", ns, err)
	}
	return h, nil
}

// Name is the link's name.
func (l *Link) Name() string { return l.current().name }

// NS is the namespace that the link is in.
func (l *Link) NS() *netns.NS { return l.current().ns }

// Index is the link's number in its namespace.
func (l *Link) Index() int { return l.current().index }

// PeerIndex is the number that the other end of a pair had where Create made it; 0 for
// what is none, or was not made here.
func (l *Link) PeerIndex() int { return l.peer }

// Spec reads the link's parameters back from the kernel, in the type the link
// was created with.
func (l *Link) Spec() (Spec, error) {
	var by sockets
	defer by.close()
	return l.specBy(&by, nil)
}

func (l *Link) specBy(by *sockets, rep *linkInfo) (Spec, error) {
	if l.spec == nil {
		return nil, fmt.Errorf("link %q was not made here: %w", l.Name(), errors.ErrUnsupported)
	}
	r, err := newReader(l, by, rep)
	if err != nil {
		return nil, err
	}
	got, err := l.spec.read(r)
	if err != nil {
		return nil, fmt.Errorf("read link %q: %w", l.Name(), err)
	}
	return got, nil
}

// Up brings the link up.
func (l *Link) Up() error {
	return l.do("bring link %q up", func(h *netlink.Handle, nl netlink.Link) error { return h.LinkSetUp(nl) })
}

// Down brings the link down.
func (l *Link) Down() error {
	return l.do("bring link %q down", func(h *netlink.Handle, nl netlink.Link) error { return h.LinkSetDown(nl) })
}

// AddAddr gives the link an address. IPv6 addresses skip duplicate address
// detection, so that they can be used at once.
func (l *Link) AddAddr(p netip.Prefix) error {
	return l.do("add address to link %q", func(h *netlink.Handle, nl netlink.Link) error {
		a, err := netlink.ParseAddr(p.String())
		if err != nil {
			return fmt.Errorf("parse address: %w", err)
		}
		if p.Addr().Is6() {
			a.Flags = ifaFNoDAD
		}
		if err := h.AddrAdd(nl, a); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		return nil
	})
}

// ifaFNoDAD is IFA_F_NODAD (include/uapi/linux/if_addr.h).
const ifaFNoDAD = 0x02

// SetMaster makes the link a port of a bridge in the same namespace.
func (l *Link) SetMaster(bridge string) error {
	return l.do("make a bridge port of link %q", func(h *netlink.Handle, nl netlink.Link) error {
		br, err := h.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("find bridge %q: %w", bridge, err)
		}
		return h.LinkSetMaster(nl, br)
	})
}

// MTU is the link's MTU, in bytes.
func (l *Link) MTU() (int, error) {
	var mtu int
	err := l.do("read mtu of link %q", func(_ *netlink.Handle, nl netlink.Link) error {
		mtu = nl.Attrs().MTU
		return nil
	})
	return mtu, err
}

// SetMTU changes the MTU, in bytes.
func (l *Link) SetMTU(mtu int) error {
	return l.do("set mtu of link %q", func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.LinkSetMTU(nl, mtu); err != nil {
			return fmt.Errorf("%d: %w", mtu, err)
		}
		return nil
	})
}

// SetMAC changes the Ethernet address.
func (l *Link) SetMAC(mac MAC) error {
	return l.do("set address of link %q", func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.LinkSetHardwareAddr(nl, mac[:]); err != nil {
			return fmt.Errorf("%s: %w", mac, err)
		}
		return nil
	})
}

// setTxQueueLen is for kinds whose driver takes it only afterwards; 0 leaves
// it.
func setTxQueueLen(l *Link, packets int) error {
	if packets == 0 {
		return nil
	}
	return l.do("set queue length of link %q", func(h *netlink.Handle, nl netlink.Link) error {
		return h.LinkSetTxQLen(nl, packets)
	})
}

// Move puts the link into another namespace under the given name; "" keeps the
// name. It comes out down and without addresses. A name in use there is
// ErrExists, and the link stays where it was.
func (l *Link) Move(to *netns.NS, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name == "" {
		name = l.name
	}
	r, err := dial(l.ns)
	if err != nil {
		return err
	}
	defer r.Close()
	if linkExists(to, name) {
		return fmt.Errorf("move link %q to %s as %q: %w", l.name, to, name, ErrExists)
	}
	if err := r.moveAndRename(l.index, to, name); err != nil {
		return fmt.Errorf("move link %q to %s as %q: %w", l.name, to, name, kernelError(err))
	}
	there, err := Find(to, name)
	if err != nil {
		return err
	}
	l.location = there.location
	return nil
}

// Close removes the link from the kernel. A link that is gone already is not
// an error, nor is a namespace that is closed.
func (l *Link) Close() error {
	if l.remove != nil {
		return l.remove()
	}
	return l.current().delete()
}

// delete removes whatever link is there.
func (w location) delete() error {
	r, err := dial(w.ns)
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.delLink(w.index); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %q: %w", w.name, kernelError(err))
	}
	return nil
}

// do runs f with a handle into the link's namespace and the kernel's view of
// the link. what has a %q for the link's name and begins the error.
func (l *Link) do(what string, f func(*netlink.Handle, netlink.Link) error) error {
	w := l.current()
	what = fmt.Sprintf(what, w.name)
	h, err := Handle(w.ns)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer h.Close()
	nl, err := h.LinkByIndex(w.index)
	if err != nil {
		return fmt.Errorf("%s: find it in %s: %w", what, w.ns, err)
	}
	if err := f(h, nl); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
