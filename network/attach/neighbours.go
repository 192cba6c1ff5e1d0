package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"cleat/link"
	"cleat/network/announce"

	"github.com/vishvananda/netlink"
)

// How thoroughly other machines are asked whether an address is theirs, as
// Spec.CheckDuplicate has it.
const (
	CheckDefault  = ""         // fast for addresses on a physical parent, none elsewhere
	CheckNone     = "none"     // not at all
	CheckFast     = "fast"     // announce.Fast: a third of a second
	CheckThorough = "thorough" // as RFC 5227 and RFC 4862 have it: four to eight seconds
)

// CheckAddresses asks the neighbours whether somebody has the addresses already.
type CheckAddresses struct {
	Link   string       `json:"link"`
	Parent string       `json:"parent,omitempty"` // that a macvlan or ipvlan stands on
	Addrs  []netip.Addr `json:"addresses"`
	How    string       `json:"how"` // CheckFast or CheckThorough
}

func (s CheckAddresses) String() string {
	return fmt.Sprintf("ask the neighbours of %s whether somebody has %s", s.Link, joinAddrs(s.Addrs))
}

func joinAddrs(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// do asks for all of them at the same time.
func (s CheckAddresses) do(r *run) error {
	at, err := r.segment(s.Parent)
	if err != nil {
		return err
	}
	var timing announce.Timing // the zero one is the standards'
	if s.How == CheckFast {
		timing = announce.Fast()
	}
	verdicts, errs := make([]announce.Verdict, len(s.Addrs)), make([]error, len(s.Addrs))
	var wg sync.WaitGroup
	for i, a := range s.Addrs {
		wg.Go(func() { verdicts[i], errs[i] = announce.Check(r.ctx, at, a, timing) })
	}
	wg.Wait()
	for _, v := range verdicts {
		if v.Conflict != nil {
			return takenBy(v.Conflict)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(verdicts) > 0 && verdicts[0].NotApplicable != "" {
		r.notes = append(r.notes, fmt.Sprintf("nobody can be asked for duplicate addresses: %s", verdicts[0].NotApplicable))
	}
	return nil
}

// takenBy says who has an address.
func takenBy(c *announce.Conflict) error {
	by := "another machine on that network"
	switch {
	case c.Parent != "":
		by = c.Parent + ", the device below"
	case c.MAC != (link.MAC{}):
		by += ", " + c.MAC.String()
	}
	return &TakenError{Resource: "address", Name: c.Addr.String(), Owner: by}
}

// Announce tells the neighbours that the addresses are here now.
type Announce struct {
	Link   string       `json:"link"`
	Parent string       `json:"parent,omitempty"` // that a macvlan or ipvlan stands on
	Addrs  []netip.Addr `json:"addresses"`
}

func (s Announce) String() string {
	return fmt.Sprintf("tell the neighbours of %s of %s", s.Link, joinAddrs(s.Addrs))
}

// announceWithin is how long the link may take to be ready. Mostly it takes the
// kernel 1 to 4 ms, most of which the steps in between have used up; a link
// without a carrier has no neighbours that could be told.
const announceWithin = 100 * time.Millisecond

// do begins with it; what comes next does not wait for it.
func (s Announce) do(r *run) error {
	at, err := r.segment(s.Parent)
	if err != nil {
		return err
	}
	var prefixes []netip.Prefix
	for _, a := range s.Addrs {
		prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), announceWithin)
	r.announcing.Go(func() {
		defer cancel()
		// A link that goes down is somebody's wish, and that nobody has heard is no reason
		// to take everything back: neighbours ask when their entries are old.
		_ = announce.Address(ctx, at, announce.Repeat{}, prefixes...)
	})
	return nil
}

// hasNeighbours tells whether a kind's links are on a segment with others.
func (p *planner) hasNeighbours() bool { return hasNeighbours(p.spec.Kind, p.mode) }

func hasNeighbours(kind, mode string) bool {
	switch kind {
	case "bridge", "ovs", "macvlan", "vlan", "vxlan", "geneve", "phys":
		return true
	case "ipvlan", "netkit":
		return mode == "l2"
	}
	return false
}

// below is the device that a macvlan or ipvlan of the plan stands on, "" for other
// kinds.
func (p *planner) lowerDevice() string {
	for _, s := range p.steps {
		if m, ok := s.(MakeLink); ok && (m.Kind == "macvlan" || m.Kind == "ipvlan") {
			return m.Params["parent"]
		}
	}
	return ""
}

// checking is how thoroughly the neighbours are asked.
func (p *planner) duplicateCheck() (string, error) {
	if p.spec.CheckDuplicate != CheckDefault {
		return p.spec.CheckDuplicate, nil
	}
	switch p.spec.Kind {
	case "macvlan", "ipvlan", "vlan", "phys":
	default:
		return CheckNone, nil
	}
	if !p.hasNeighbours() {
		return CheckNone, nil
	}
	l, err := p.parent()
	if err != nil {
		return "", err
	}
	if p.physical(l) {
		return CheckFast, nil
	}
	return CheckNone, nil
}

// physical tells whether a device leads to machines that are not this one: a card,
// several, or a VLAN of one.
func (p *planner) physical(l netlink.Link) bool {
	for range 8 { // VLANs in VLANs
		switch l.Type() {
		case "device", "bond", "team":
			return true
		case "vlan":
			below, err := p.host.LinkByIndex(l.Attrs().ParentIndex)
			if err != nil {
				return false
			}
			l = below
		default:
			return false
		}
	}
	return false
}
