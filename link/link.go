package link

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Spec describes a link: comparable data, one type per kind. The zero value of
// every parameter selects the kernel's default.
type Spec interface {
	// Kind returns the name of the kind as in Kinds. It is mostly the kernel's
	// (IFLA_INFO_KIND), e.g. "macvlan".
	Kind() string
	// Validate returns a *ParamError for the first parameter that no kernel
	// accepts.
	Validate() error

	// attrs returns the parameters that all kinds share.
	attrs() Attrs
	// create creates the link. On error it leaves nothing behind.
	create(m *creator) error
}

// Attrs are the parameters that every kind has.
type Attrs struct {
	Name       string // 1…15 bytes, no '/' or space
	MTU        int    // bytes; 0: the kernel's default for the kind
	MAC        MAC    // zero: chosen by the kernel
	TxQueueLen int    // packets; 0: the kernel's default
}

func (a Attrs) attrs() Attrs { return a }

func (a *Attrs) shared() *Attrs { return a }

// params returns the shared parameters. Their attributes are not in
// IFLA_INFO_DATA: Attrs.attributes encodes them.
func (a *Attrs) params() []field {
	return []field{
		{name: "name", val: device{p: &a.Name, required: true}},
		{name: "mtu", val: u32(&a.MTU).between(68, 65535)},
		{name: "mac", val: hardware{p: &a.MAC}},
		{name: "txqueuelen", val: u32(&a.TxQueueLen)},
	}
}

// Target names the namespaces in which a new link ends up. The zero Target is
// the namespace given to Create.
type Target struct {
	NS     *netns.NS // nil: the namespace given to Create
	PeerNS *netns.NS // of the peer of a veth or netkit; nil: the namespace given to Create
}

// Link is a handle on a link in the kernel. It is safe for concurrent use. It
// refers to the namespaces it was created with and must be closed before they
// are.
type Link struct {
	spec   Spec         // nil: found, not created
	origin *netns.NS    // namespace of its parent
	peerNS *netns.NS    // namespace in which its peer was created
	peer   int          // of a pair: index of the peer when it was created
	remove func() error // removes the link, instead of RTM_DELLINK
	files  []*os.File   // queues of a TUN device

	mu sync.Mutex // guards location
	location
}

// location is where a link is. Move changes it.
type location struct {
	ns    *netns.NS
	name  string
	index int
}

func (l *Link) current() location {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.location
}

// Create creates the link that spec describes. It looks up parents in ns, which
// is also the namespace that a tunnel's outer packets leave from. On error
// nothing stays behind and existing links are untouched. An invalid parameter
// is a *ParamError, a name in use is ErrExists, an identity in use is
// ErrConflict, and what the kernel, the machine or the caller's privileges
// don't allow is a *Lack.
func Create(ns *netns.NS, spec Spec, to Target) (*Link, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	m := &creator{ns: ns, spec: spec, to: Target{NS: cmp.Or(to.NS, ns), PeerNS: cmp.Or(to.PeerNS, ns)}}
	defer m.close()
	if err := spec.create(m); err != nil {
		return nil, m.explain(err)
	}
	l, info, err := findBy(&m.sockets, m.to.NS, spec.attrs().Name)
	if err != nil {
		errs := []error{err, closeFiles(m.files)}
		if m.remove != nil {
			errs = append(errs, m.remove())
		}
		return nil, errors.Join(errs...)
	}
	l.spec, l.origin, l.peerNS, l.remove, l.files = spec, ns, m.to.PeerNS, m.remove, m.files
	if _, ok := spec.(paired); ok {
		l.peer = info.number(unix.IFLA_LINK)
	}
	if err := l.finish(&m.sockets, info); err != nil {
		return nil, errors.Join(m.explain(err), l.Close())
	}
	return l, nil
}

// configurer is a Spec whose link needs more than one message to the kernel.
type configurer interface {
	configure(l *Link) error
}

// finish configures a new link, reads it back and compares it with its spec.
// info is the kernel's report of the link before it is configured.
func (l *Link) finish(by *sockets, info *linkInfo) error {
	if c, ok := l.spec.(configurer); ok {
		if err := c.configure(l); err != nil {
			return err
		}
		info = nil
	}
	got, err := l.specBy(by, info)
	if err != nil {
		return err
	}
	return verify(l.spec, got)
}

// Find returns a handle on an existing link of any kind.
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
	info, err := r.find(name)
	if err != nil {
		return nil, nil, fmt.Errorf("find link %q in %s: %w", name, ns, err)
	}
	return &Link{origin: ns, peerNS: ns, location: location{ns, name, info.index}}, info, nil
}

// Handle opens a route netlink socket in ns that any thread may use. The caller
// closes it.
func Handle(ns *netns.NS) (*netlink.Handle, error) {
	return openIn(ns, "netlink", func() (*netlink.Handle, error) { return netlink.NewHandle(unix.NETLINK_ROUTE) })
}

// HandleHere is Handle in the network namespace of the calling thread.
func HandleHere() (*netlink.Handle, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return Handle(ns)
}

// Name returns the link's name.
func (l *Link) Name() string { return l.current().name }

// NS returns the namespace that the link is in.
func (l *Link) NS() *netns.NS { return l.current().ns }

// Index returns the link's interface index in its namespace.
func (l *Link) Index() int { return l.current().index }

// PeerIndex returns the interface index that the peer of a pair had when Create
// created it. It is 0 for a link that has no peer or was not created here.
func (l *Link) PeerIndex() int { return l.peer }

// specBy reads the link's parameters from the kernel, in the type that the link was
// created with. info is the kernel's report of the link, or nil to ask for it.
func (l *Link) specBy(by *sockets, info *linkInfo) (Spec, error) {
	r, err := newReader(l, by, info)
	if err != nil {
		return nil, err
	}
	got, err := kindOf(l.spec).read(r, l.spec)
	if err != nil {
		return nil, fmt.Errorf("read link %q: %w", l.Name(), err)
	}
	return got, nil
}

// Up brings the link up.
func (l *Link) Up() error {
	return l.do("bring up", func(h *netlink.Handle, nl netlink.Link) error { return h.LinkSetUp(nl) })
}

// Down brings the link down.
func (l *Link) Down() error {
	return l.do("bring down", func(h *netlink.Handle, nl netlink.Link) error { return h.LinkSetDown(nl) })
}

// AddAddr adds an address to the link. IPv6 addresses skip duplicate address
// detection, so that they are usable at once.
func (l *Link) AddAddr(p netip.Prefix) error {
	return l.do(fmt.Sprintf("add address %s to", p), func(h *netlink.Handle, nl netlink.Link) error {
		a, err := netlink.ParseAddr(p.String())
		if err != nil {
			return err
		}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		return h.AddrAdd(nl, a)
	})
}

// SetMaster makes the link a port of a bridge in the same namespace.
func (l *Link) SetMaster(bridge string) error {
	return l.do("make a bridge port of", func(h *netlink.Handle, nl netlink.Link) error {
		br, err := h.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("find bridge %q: %w", bridge, err)
		}
		return h.LinkSetMaster(nl, br)
	})
}

// MTU returns the link's MTU, in bytes.
func (l *Link) MTU() (int, error) {
	var mtu int
	err := l.do("read mtu of", func(_ *netlink.Handle, nl netlink.Link) error {
		mtu = nl.Attrs().MTU
		return nil
	})
	return mtu, err
}

// SetMTU sets the MTU, in bytes.
func (l *Link) SetMTU(mtu int) error {
	return l.do(fmt.Sprintf("set mtu %d on", mtu), func(h *netlink.Handle, nl netlink.Link) error { return h.LinkSetMTU(nl, mtu) })
}

// SetMAC sets the Ethernet address.
func (l *Link) SetMAC(mac MAC) error {
	return l.do(fmt.Sprintf("set address %s on", mac), func(h *netlink.Handle, nl netlink.Link) error {
		return h.LinkSetHardwareAddr(nl, mac[:])
	})
}

// setAttrs sets shared parameters of a link that were not part of the request that
// created it. It skips zero values.
func (l *Link) setAttrs(a Attrs) error {
	return l.do("configure", func(h *netlink.Handle, nl netlink.Link) error {
		var errs []error
		if a.TxQueueLen != 0 {
			errs = append(errs, h.LinkSetTxQLen(nl, a.TxQueueLen))
		}
		if a.MTU != 0 {
			errs = append(errs, h.LinkSetMTU(nl, a.MTU))
		}
		if a.MAC != (MAC{}) {
			errs = append(errs, h.LinkSetHardwareAddr(nl, a.MAC[:]))
		}
		return errors.Join(errs...)
	})
}

// Move moves the link to another namespace under the given name; "" keeps the
// name. The link arrives down and without addresses. A name in use there is
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
		err = ErrExists
	} else {
		err = kernelError(r.moveAndRename(l.index, to, name))
	}
	if err != nil {
		return fmt.Errorf("move link %q to %s as %q: %w", l.name, to, name, err)
	}
	moved, err := Find(to, name)
	if err != nil {
		return err
	}
	l.location = moved.location
	return nil
}

// Close removes the link from the kernel. Closing a link that is already gone,
// or whose namespace is closed, is not an error.
func (l *Link) Close() error {
	if l.remove != nil {
		return l.remove()
	}
	return errors.Join(l.current().delete(), closeFiles(l.files))
}

func (w location) delete() error {
	r, err := dial(w.ns)
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = r.execute(unix.RTM_DELLINK, unix.NLM_F_ACK, ifinfo(unix.AF_UNSPEC, w.index), nil)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %q: %w", w.name, kernelError(err))
	}
	return nil
}

// do calls f with a netlink handle in the link's namespace and the kernel's view
// of the link. An error begins with action and the link's name.
func (l *Link) do(action string, f func(*netlink.Handle, netlink.Link) error) error {
	w := l.current()
	h, err := Handle(w.ns)
	if err == nil {
		defer h.Close()
		var nl netlink.Link
		if nl, err = h.LinkByIndex(w.index); err != nil {
			err = fmt.Errorf("find it in %s: %w", w.ns, err)
		} else {
			err = f(h, nl)
		}
	}
	if err != nil {
		return fmt.Errorf("%s link %q: %w", action, w.name, err)
	}
	return nil
}
