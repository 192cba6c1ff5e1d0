package attach

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MakeLink creates a link in the container, if possible by a single message to the kernel.
type MakeLink struct {
	Kind     string            `json:"kind"` // of package link
	Name     string            `json:"name"` // in the container
	Params   map[string]string `json:"params,omitempty"`
	MAC      link.MAC          `json:"mac,omitzero"`        // zero: it has none of its own
	Peer     string            `json:"peer,omitempty"`      // name of the other end on the host, if it is a pair
	PeerMAC  link.MAC          `json:"peer_mac,omitzero"`   // of the other end
	Rename   bool              `json:"rename,omitempty"`    // it is created under a temporary name first: see createLink
	HandOver bool              `json:"hand_over,omitempty"` // Spec.HandOver
}

func (s MakeLink) String() string {
	words := []string{"make", s.Kind, s.Name, "in the container"}
	if s.HandOver {
		words[3] = "on the host for the engine"
	}
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
	m := undoLink{NS: r.cont.ref, Name: s.Name, MAC: s.MAC, Type: libraryType(s.Kind)}
	if s.HandOver && s.Peer == "" {
		m.MovedTo = r.att.Container.Path
	}
	in, target, temp := r.cont, link.Target{NS: r.cont.ns}, s.Rename
	if s.Peer != "" { // removing the end on the host removes both
		m.NS, m.Name, m.MAC = r.host.ref, s.Peer, s.PeerMAC
		in, target, temp = r.host, link.Target{NS: r.host.ns, PeerNS: r.cont.ns}, s.PeerMAC == (link.MAC{})
	}
	if name := s.Params["parent"]; name != "" {
		parent, err := r.host.mustFind(name)
		if err != nil {
			return err
		}
		m.Parent = parent.Attrs().Index
	}
	l, err := in.createLink(r.record, m, temp, func(name string) (*link.Link, error) {
		spec, err := s.parse(name)
		if err != nil {
			return nil, err
		}
		l, err := link.Create(r.host.ns, spec, target)
		var bad *link.ParamError
		switch {
		case errors.Is(err, link.ErrExists):
			err = fmt.Errorf("%w: %w", &TakenError{Resource: "link", Name: s.Name}, err)
		case errors.As(err, &bad) && bad.Kind == "macvlan" && bad.Param == "mode":
			// The kernel doesn't say which device is in the way (macvlan_common_newlink,
			// drivers/net/macvlan.c).
			parent := s.Params["parent"]
			err = cmp.Or(r.checkPassthru(parent), r.passthruError(parent, "a macvlan device in another network namespace", ""))
		}
		return l, err
	})
	if err != nil {
		return err
	}
	r.linkIndex = l.Index()
	if s.Peer != "" {
		r.peer, r.peerIndex, r.linkIndex = s.Peer, l.Index(), l.PeerIndex()
	}
	return nil
}

// parse returns the specification of the link. Of a pair, name is that of the end on the
// host.
func (s MakeLink) parse(name string) (link.Spec, error) {
	params := map[string]string{"name": name}
	for k, v := range s.Params {
		text, err := paramValue(v)
		if err != nil {
			return nil, err
		}
		params[k] = text
	}
	macs := map[string]link.MAC{"mac": s.MAC}
	if s.Peer != "" {
		params["peer"] = s.Name
		macs = map[string]link.MAC{"mac": s.PeerMAC, "peer_mac": s.MAC}
	}
	for k, mac := range macs {
		if mac != (link.MAC{}) {
			params[k] = mac.String()
		}
	}
	return link.Parse(s.Kind, params)
}

// libraryType returns the netlink library's name for a kind of link.
func libraryType(kind string) string {
	if kind == "tun" {
		return (&netlink.Tuntap{}).Type()
	}
	return kind
}

// secret reports whether the value of a parameter must not be shown.
func secret(param string) bool { return param == "private_key" || param == "peers" }

// paramValue returns the value of a parameter: that given, or the content of the file named
// by "@FILE".
func paramValue(value string) (string, error) {
	path, isFile := strings.CutPrefix(value, "@")
	if !isFile {
		return value, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read parameter: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// createLink creates in n the link that m describes. It calls record before and after create,
// so that a process that finds the link half made can identify it: first by name and MAC
// address, then by the index as well. A link without a MAC address of its own needs temp: it is
// created under a random name and renamed, which takes an RCU grace period longer.
func (n *namespace) createLink(record func(Undo) error, m undoLink, temp bool, create func(name string) (*link.Link, error)) (*link.Link, error) {
	first := m
	first.Type, first.Parent = "", 0
	if temp {
		first.Name, first.MAC = tempName(), link.MAC{}
	}
	if err := record(Undo{Link: &first}); err != nil {
		return nil, err
	}
	l, err := create(first.Name)
	if err != nil {
		return nil, err
	}
	m.Index = l.Index()
	if err := record(Undo{Link: &m}); err != nil || !temp {
		return l, err
	}
	err = n.LinkSetName(byIndex(m.Index), m.Name)
	if errors.Is(err, unix.EEXIST) {
		return nil, &TakenError{Resource: "link", Name: m.Name}
	}
	if err != nil {
		return nil, fmt.Errorf("rename link %s to %s: %w", first.Name, m.Name, err)
	}
	return l, nil
}

// undoLink removes a link. Before the link exists, the record has its name and, unless the
// name is temporary, its MAC address; afterwards it has its index as well.
type undoLink struct {
	NS    nsRef    `json:"where"`
	Name  string   `json:"name"`
	MAC   link.MAC `json:"mac,omitzero"`
	Index int      `json:"index,omitempty"`
	Type  string   `json:"type,omitempty"`
	// Parent is the index of the host's device on which the link stands. A container can't
	// change it, as it can change names and addresses. 0 if there is none.
	Parent int `json:"parent,omitempty"`
	// MovedTo is the path of the namespace to which an engine may move the link; "": nobody does.
	MovedTo string `json:"moved_to,omitempty"`
}

// tempPrefix begins temporary names. Twelve random characters follow.
const tempPrefix = "cl-"

func (m *undoLink) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	l, err := m.find(n)
	if err != nil {
		return err
	}
	if l == nil && m.MovedTo != "" {
		return m.undoMoved(u)
	}
	if l == nil {
		if m.Index != 0 && n != u.host && !slices.Contains(u.removed, m.Index) {
			u.noteMissing(m.Name)
		}
		return nil
	}
	return m.delete(u, n, l)
}

func (m *undoLink) delete(u *undoer, n *namespace, l netlink.Link) error {
	del := func() error { return n.LinkDel(byIndex(l.Attrs().Index)) }
	containers := n != u.host || m.Type == "veth" || m.MovedTo != "" // and none that the host has for it
	if containers && u.unlisted != nil {
		del = tellUnlisted(n, l, del, u.unlisted)
	}
	err := del()
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %q from %s: %w", l.Attrs().Name, n.ns, err)
	}
	if n != u.host {
		u.removed = append(u.removed, l.Attrs().Index)
	}
	return nil
}

// unlistedPoll is how often tellUnlisted looks. The kernel takes a link from its lists within a millisecond.
const unlistedPoll = 100 * time.Microsecond

// tellUnlisted makes a function that deletes a link call unlisted as soon as no list has the link: before the
// kernel waits for those who still use it (unregister_netdevice_many_notify, net/core/dev.c).
func tellUnlisted(n *namespace, l netlink.Link, del func() error, unlisted func()) func() error {
	return func() error {
		listing, err := link.OpenListing(n.ns)
		if err != nil {
			return del() // nobody can tell
		}
		defer listing.Close()
		done := make(chan error, 1)
		go func() { done <- del() }()
		tick := time.NewTicker(unlistedPoll)
		defer tick.Stop()
		for {
			select {
			case err := <-done:
				return err
			case <-tick.C:
			}
			if is, err := listing.Has(l.Attrs().Index); err == nil && !is {
				unlisted()
				return <-done
			}
		}
	}
}

// find returns the link; nil, nil if it does not exist. An index is not proof, because
// whoever creates a link can choose it: name, MAC address or parent must match as well.
func (m *undoLink) find(n *namespace) (netlink.Link, error) {
	if m.Index == 0 {
		l, err := n.find(m.Name)
		if l == nil || !strings.HasPrefix(m.Name, tempPrefix) && !m.hasMAC(l) {
			return nil, err
		}
		return l, nil
	}
	l, err := n.findIndex(m.Index)
	if l == nil {
		return nil, err
	}
	a := l.Attrs()
	hasParent := m.Parent != 0 && a.ParentIndex == m.Parent && a.NetNsID >= 0 // the parent is in another namespace (IFLA_LINK_NETNSID)
	if l.Type() != m.Type || a.Name != m.Name && !m.hasMAC(l) && !hasParent {
		return nil, nil
	}
	return l, nil
}

func (m *undoLink) hasMAC(l netlink.Link) bool { return m.MAC != (link.MAC{}) && macOf(l) == m.MAC }

// The first byte of addresses that cleat chooses: locally administered (IEEE 802c).
const (
	unicast  = 0x02
	portSide = 0xfe // for ports of a bridge: a bridge without a fixed address takes its ports' lowest
)

// randomMAC returns an address with 40 random bits.
func randomMAC(first byte) link.MAC {
	var m link.MAC
	_, _ = rand.Read(m[:]) // never fails (crypto/rand)
	m[0] = first
	return m
}

// RandomMAC returns a random Ethernet address for the link of a container.
func RandomMAC() link.MAC { return randomMAC(unicast) }

// tempName returns a name that no other device has.
func tempName() string { return tempPrefix + strings.ToLower(rand.Text()[:12]) } // 60 random bits
