package attach

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MakeLink makes a link in the container, directly and by one message to the
// kernel where that can be.
//
// What it makes must be known again by whoever finds it half done. A link with an
// address of its own is made with one that was chosen at random before. One
// without is made under a name that was, and renamed: a moment (an RCU grace
// period) later.
type MakeLink struct {
	Kind    string            `json:"kind"` // of package link
	Name    string            `json:"name"` // in the container
	Params  map[string]string `json:"params,omitempty"`
	MAC     link.MAC          `json:"mac,omitzero"`      // zero: it has none of its own
	Peer    string            `json:"peer,omitempty"`    // the other end's name on the host, of a pair
	PeerMAC link.MAC          `json:"peer_mac,omitzero"` // the other end's address
	Rename  bool              `json:"rename,omitempty"`  // made under another name first
}

func (s MakeLink) String() string {
	words := []string{"make", s.Kind, s.Name, "in the container"}
	for _, k := range slices.Sorted(maps.Keys(s.Params)) {
		v := s.Params[k]
		if secret(k) {
			v = "(hidden)"
		}
		words = append(words, k, v)
	}
	if s.Peer != "" {
		words = append(words, "with", s.Peer, "on the host")
	}
	return strings.Join(words, " ")
}

func (s MakeLink) check(r *run) error {
	if s.Kind != "macvlan" {
		return nil
	}
	return r.checkPassthru(s.Params["parent"])
}

func (s MakeLink) do(r *run) error {
	if s.Peer != "" {
		return s.pair(r)
	}
	m := undoLink{NS: r.cont.ref, Name: s.Name, MAC: s.MAC}
	if s.Rename {
		m.Name, m.MAC = tempName(), link.MAC{}
	}
	if err := r.record(Undo{Link: &m}); err != nil {
		return err
	}
	l, err := s.create(r, m.Name, link.Target{NS: r.cont.ns})
	var bad *link.ParamError
	if errors.As(err, &bad) && bad.Kind == "macvlan" && bad.Param == "mode" {
		err = r.explainPassthru(s.Params["parent"], err)
	}
	if err != nil {
		return err
	}
	r.linkIndex = l.Index()
	known := undoLink{NS: r.cont.ref, Name: s.Name, MAC: s.MAC, Index: r.linkIndex, Type: libraryType(s.Kind)}
	if name := s.Params["parent"]; name != "" {
		parent, err := r.host.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find parent %q: %w", name, err)
		}
		known.Parent = parent.Attrs().Index
	}
	if err := r.record(Undo{Link: &known}); err != nil || !s.Rename {
		return err
	}
	if err := r.cont.LinkSetName(byIndex(r.linkIndex), s.Name); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return &TakenError{Resource: "link", Name: s.Name}
		}
		return fmt.Errorf("rename it: %w", err)
	}
	return nil
}

// pair makes both ends; what undoes one undoes the other.
func (s MakeLink) pair(r *run) error {
	m := undoLink{NS: r.host.ref, Name: s.Peer, MAC: s.PeerMAC}
	if s.PeerMAC == (link.MAC{}) {
		m.Name = tempName()
	}
	if err := r.record(Undo{Link: &m}); err != nil {
		return err
	}
	l, err := s.create(r, m.Name, link.Target{NS: r.host.ns, PeerNS: r.cont.ns})
	if err != nil {
		return err
	}
	known := undoLink{NS: m.NS, Name: s.Peer, MAC: s.PeerMAC, Index: l.Index(), Type: libraryType(s.Kind)}
	if err := r.record(Undo{Link: &known}); err != nil {
		return err
	}
	if s.PeerMAC == (link.MAC{}) {
		if err := r.host.LinkSetName(byIndex(known.Index), s.Peer); err != nil {
			return fmt.Errorf("rename it: %w", err)
		}
	}
	r.peer, r.peerIndex, r.linkIndex = s.Peer, l.Index(), l.PeerIndex()
	return nil
}

// libraryType is what the netlink library calls links of a kind.
func libraryType(kind string) string {
	if kind == "tun" {
		return (&netlink.Tuntap{}).Type()
	}
	return kind
}

// create makes the link under a name; of a pair that is the end on the host.
func (s MakeLink) create(r *run, name string, to link.Target) (*link.Link, error) {
	params := maps.Clone(s.Params)
	if params == nil {
		params = map[string]string{}
	}
	for k, v := range params {
		text, err := contents(v)
		if err != nil {
			return nil, err
		}
		params[k] = text
	}
	params["name"] = name
	own, prefix := s.MAC, ""
	if s.Peer != "" {
		params["peer"], own, prefix = s.Name, s.PeerMAC, "peer_"
	}
	if own != (link.MAC{}) {
		params["mac"] = own.String()
	}
	if prefix != "" && s.MAC != (link.MAC{}) {
		params[prefix+"mac"] = s.MAC.String()
	}
	spec, err := link.Parse(s.Kind, params)
	if err != nil {
		return nil, err
	}
	l, err := link.Create(r.host.ns, spec, to)
	if errors.Is(err, link.ErrExists) {
		return nil, fmt.Errorf("%w: %w", &TakenError{Resource: "link", Name: s.Name}, err)
	}
	return l, err
}

// secret tells whether a parameter must not be shown.
func secret(param string) bool { return param == "private_key" || param == "peers" }

// contents is a parameter's value, or what is in the file that "@FILE" names.
func contents(value string) (string, error) {
	path, is := strings.CutPrefix(value, "@")
	if !is {
		return value, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read parameter: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// linkMade is a link of ours. Before it is there we know its name and, where it
// has one of its own, the address that was chosen for it at random; afterwards
// its number, too.
type undoLink struct {
	NS    nsRef    `json:"where"`
	Name  string   `json:"name"`
	MAC   link.MAC `json:"mac,omitzero"`
	Index int      `json:"index,omitempty"`
	Type  string   `json:"type,omitempty"`
	// Parent is the number of the host's device that it stands on, which a container can't
	// change as it can names and addresses; 0: of none.
	Parent int `json:"parent,omitempty"`
}

// tempPrefix begins the names that links without an address of their own are made
// under; twelve random characters follow, so that nobody else has the name.
const tempPrefix = "cl-"

func (m *undoLink) undo(u *undoer) error {
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil // and its links with it
	}
	if err != nil {
		return err
	}
	l, err := m.find(s)
	if err != nil {
		return err
	}
	if l == nil {
		if m.Index != 0 && s != u.host && !slices.Contains(u.removed, m.Index) {
			u.noteMoved(m.Name)
		}
		return nil
	}
	err = s.LinkDel(byIndex(l.Attrs().Index))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %q from %s: %w", l.Attrs().Name, s.ns, err)
	}
	if s != u.host {
		u.removed = append(u.removed, l.Attrs().Index)
	}
	return nil
}

// find is the link if it is there; nil, nil otherwise. A number, which the kernel
// counts up, can be asked for by whoever makes a link: name or address must fit,
// too.
func (m *undoLink) find(s *namespace) (netlink.Link, error) {
	if m.Index == 0 {
		l, err := s.find(m.Name)
		if err != nil || l == nil {
			return nil, err
		}
		if strings.HasPrefix(m.Name, tempPrefix) || m.MAC != (link.MAC{}) && macOf(l) == m.MAC {
			return l, nil
		}
		return nil, nil
	}
	l, err := s.LinkByIndex(m.Index)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %d in %s: %w", m.Index, s.ns, err)
	}
	a := l.Attrs()
	outside := m.Parent != 0 && a.ParentIndex == m.Parent && a.NetNsID >= 0 // IFLA_LINK_NETNSID
	same := a.Name == m.Name || m.MAC != (link.MAC{}) && macOf(l) == m.MAC || outside
	if l.Type() != m.Type || !same {
		return nil, nil
	}
	return l, nil
}

// The first bytes of addresses that we choose: locally administered (IEEE 802c).
const (
	unicast  = 0x02
	portSide = 0xfe // a bridge without an address of its own takes its ports' lowest: never this
)

// randomMAC has 40 random bits.
func randomMAC(first byte) link.MAC {
	var m link.MAC
	_, _ = rand.Read(m[:]) // never fails (crypto/rand)
	m[0] = first
	return m
}

// tempName is a device name that nobody else has: 60 random bits.
func tempName() string { return tempPrefix + strings.ToLower(rand.Text()[:12]) }
