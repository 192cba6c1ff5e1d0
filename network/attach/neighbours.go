package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/link"
	"cleat/network/announce"

	"github.com/vishvananda/netlink"
)

// Values of Spec.CheckDuplicate: how to check that no other machine uses an address.
const (
	CheckDefault  = ""         // fast if the parent is hardware, otherwise none
	CheckNone     = "none"     // no check
	CheckFast     = "fast"     // as announce.Fast: a third of a second
	CheckThorough = "thorough" // as in RFC 5227 and RFC 4862: four to eight seconds
)

// CheckAddresses checks that no neighbour uses the addresses.
type CheckAddresses struct {
	Link   string       `json:"link"`
	Parent string       `json:"parent,omitempty"` // device on which a macvlan or ipvlan stands
	Addrs  []netip.Addr `json:"addresses"`
	How    string       `json:"how"` // CheckFast or CheckThorough
}

func (s CheckAddresses) String() string {
	return fmt.Sprintf("check that no neighbour of %s uses %s", s.Link, joinAddrs(s.Addrs))
}

func joinAddrs(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// do checks all addresses at the same time.
func (s CheckAddresses) do(r *run) error {
	at, err := r.segment(s.Parent)
	if err != nil {
		return err
	}
	var timing announce.Timing // zero: as in the RFCs
	if s.How == CheckFast {
		timing = announce.Fast()
	}
	verdicts, errs := make([]announce.Result, len(s.Addrs)), make([]error, len(s.Addrs))
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
		r.notes = append(r.notes, fmt.Sprintf("the addresses can't be checked for duplicates: %s", verdicts[0].NotApplicable))
	}
	return nil
}

// takenBy returns the error for an address that a neighbour uses.
func takenBy(c *announce.Conflict) error {
	owner := "another machine on the network"
	switch {
	case c.Parent != "":
		owner = c.Parent + ", the link's parent"
	case c.MAC != (link.MAC{}):
		owner += ", " + c.MAC.String()
	}
	return &TakenError{Resource: "address", Name: c.Addr.String(), Owner: owner}
}

// Announce announces the addresses to the neighbours.
type Announce struct {
	Link   string       `json:"link"`
	Parent string       `json:"parent,omitempty"` // device on which a macvlan or ipvlan stands
	Addrs  []netip.Addr `json:"addresses"`
}

func (s Announce) String() string {
	return fmt.Sprintf("announce %s on %s", joinAddrs(s.Addrs), s.Link)
}

// announceWithin bounds the time until the link is ready. The kernel usually takes 1 to 4 ms,
// most of which passes during other steps. A link without a carrier has no neighbours.
const announceWithin = 100 * time.Millisecond

// do starts the announcement and does not wait for it. If the operation has a background, the
// announcement does not start before the operation has ended and Config.AnnounceAfter is closed: a bridge
// copies it to all its ports, and meanwhile the kernel changes no other link.
func (s Announce) do(r *run) error {
	at, err := r.segment(s.Parent)
	if err != nil {
		return err
	}
	r.announcing.Go(func() {
		if r.ended != nil {
			if <-r.ended; r.failed {
				return
			}
		}
		if r.announceAfter != nil {
			<-r.announceAfter
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), announceWithin)
		defer cancel()
		// An error is no reason to roll back: somebody may have brought the link down, and
		// neighbours that miss the announcement ask once their entries are stale.
		_ = announce.Address(ctx, at, s.Addrs...)
	})
	return nil
}

func (p *planner) hasNeighbours() bool { return hasNeighbours(p.spec.Kind, p.mode) }

// hasNeighbours reports whether links of a kind share an Ethernet segment with others.
func hasNeighbours(kind, mode string) bool {
	switch kind {
	case "bridge", "ovs", "macvlan", "vlan", "vxlan", "geneve", "phys":
		return true
	case "ipvlan", "netkit":
		return mode == "l2"
	}
	return false
}

// lowerDevice returns the device on which the planned macvlan or ipvlan stands; "" for other
// kinds.
func (p *planner) lowerDevice() string {
	for _, s := range p.steps {
		if m, ok := s.(MakeLink); ok && (m.Kind == "macvlan" || m.Kind == "ipvlan") {
			return m.Params["parent"]
		}
	}
	return ""
}

// duplicateCheck returns the effective value of Spec.CheckDuplicate.
func (p *planner) duplicateCheck() (string, error) {
	if p.spec.CheckDuplicate != CheckDefault {
		return p.spec.CheckDuplicate, nil
	}
	if !slices.Contains([]string{"macvlan", "ipvlan", "vlan", "phys"}, p.spec.Kind) || !p.hasNeighbours() {
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

// physical reports whether a device leads to other machines: a network card, several of them,
// or a VLAN on one.
func (p *planner) physical(l netlink.Link) bool {
	for range 8 { // VLANs can be stacked
		switch l.Type() {
		case "device", "bond", "team":
			return true
		case "vlan":
			lower, err := p.host.LinkByIndex(l.Attrs().ParentIndex)
			if err != nil {
				return false
			}
			l = lower
		default:
			return false
		}
	}
	return false
}
