package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"cleat/network/journal"
)

// HostSide is what a named network needs on the host, whether or not a container is on it.
// Like an attachment, it is set up completely or not at all, has a journal, and shares what it
// uses with attachments: a bridge goes with the last of them.
type HostSide struct {
	Bridge     string         // created if absent; "": none
	Adopt      bool           // use a bridge that exists, which then stays
	VLANs      bool           // the bridge filters VLANs
	VRF        string         // that a new bridge is in; "": none
	MTU        int            // of a new bridge, in bytes; 0: that of the device of the host's default route, or the VRF's
	Addresses  []netip.Prefix // of the host on the bridge
	Forwarding []int          // address families in which the host forwards packets: 4, 6
}

func (h HostSide) steps(p *planner) []Step {
	var steps []Step
	if h.Bridge != "" {
		mtu := h.MTU
		if mtu == 0 {
			mtu = p.uplinkMTU(p.host.tableOf(h.VRF))
		}
		steps = append(steps, UseBridge{Name: h.Bridge, MTU: mtu, VLANFiltering: h.VLANs, NoSnooping: true})
		if h.VRF != "" {
			steps = append(steps, InVRF{Bridge: h.Bridge, VRF: h.VRF})
		}
	}
	for _, a := range h.Addresses {
		steps = append(steps, BridgeAddress{Bridge: h.Bridge, Prefix: a})
	}
	for _, family := range h.Forwarding {
		steps = append(steps, Forwarding{Family: family})
	}
	return steps
}

// hostSideID returns the id under which the journal of a network's host side is stored. No
// attachment has it, because the names of engines have no '~'.
func hostSideID(network string) string { return "net~" + fileName(network) }

// SetUpHost sets up the host side of a network. Of one that exists already, it repairs what
// somebody else has removed. It must run in the host's network namespace. On error everything
// is as before. The error is a *TakenError if another device has the name of the bridge.
func SetUpHost(ctx context.Context, cfg Config, network string, h HostSide) (notes []string, err error) {
	if err := cfg.Store.prepare(); err != nil {
		return nil, err
	}
	s, err := newSession(cfg.Store, cfg.Checkpoint)
	if err != nil {
		return nil, err
	}
	defer s.close()
	id := hostSideID(network)
	p := &planner{session: s, id: id}
	if err := s.checkHostSide(h); err != nil {
		return nil, err
	}
	j, notes, err := s.hostSideJournal(ctx, id)
	if err != nil {
		return notes, err
	}
	exists := j.Path() == s.store.liveJournal(id)
	r := &run{session: s, ctx: ctx, journal: j, att: &Attachment{ID: id}, notes: notes}
	switch err = r.setUpHost(h.steps(p)); {
	case err == nil:
		return r.notes, nil
	case exists || errors.Is(err, ErrKilled):
		return r.notes, errors.Join(err, j.Close())
	}
	return r.notes, r.rollBack(err)
}

// setUpHost takes all steps and completes the journal.
func (r *run) setUpHost(steps []Step) error {
	if err := r.journal.Append(entry{Begin: &header{Host: r.host.ref}}); err != nil {
		return err
	}
	if err := r.doSteps(steps); err != nil {
		return err
	}
	if err := r.journal.Append(entry{Made: &outcome{}}); err != nil {
		return err
	}
	if err := r.checkpoint(); err != nil {
		return err
	}
	if err := r.journal.Rename(r.store.liveJournal(r.att.ID)); err != nil {
		return err
	}
	return r.journal.Close()
}

// checkHostSide rejects a bridge that belongs to somebody else, and a VRF that does not exist.
func (s *session) checkHostSide(h HostSide) error {
	if h.Bridge == "" {
		return nil
	}
	l, err := s.host.find(h.Bridge)
	if h.Adopt && l != nil && l.Type() == "bridge" {
		return nil
	}
	if l == nil || sharedReady(s.store.sharedDir(s.host.ref.key()+" "+UseBridge{Name: h.Bridge}.key())) {
		if err == nil && h.VRF != "" {
			_, err = s.host.vrf(h.VRF)
		}
		return err
	}
	return &TakenError{Resource: "link", Name: h.Bridge, Owner: "a device of the host, of kind " + l.Type()}
}

// hostSideJournal creates the journal of a network's host side. If the host side exists, it
// takes over its journal, to which the new steps append.
func (s *session) hostSideJournal(ctx context.Context, id string) (*journal.Journal, []string, error) {
	unlock, err := s.store.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	notes, err := s.repair()
	if err != nil {
		return nil, notes, err
	}
	if path := s.store.operationOn(id); path != "" {
		return nil, notes, busyError(path)
	}
	j, err := journal.Open(s.store.liveJournal(id))
	if errors.Is(err, fs.ErrNotExist) {
		j, err = journal.Create(s.store.opJournal(id))
		return j, notes, err
	}
	return j, notes, err
}

// RemoveHost undoes SetUpHost. What attachments still use stays until the last of them is
// detached. It is harmless for a network without a host side. Once it has begun, it is never
// rolled back: if it is interrupted, the next command completes it.
func RemoveHost(ctx context.Context, cfg Config, network string) (notes []string, err error) {
	if err := cfg.Store.prepare(); err != nil {
		return nil, err
	}
	s, err := newSession(cfg.Store, cfg.Checkpoint)
	if err != nil {
		return nil, err
	}
	defer s.close()
	unlock, err := s.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	notes, err = s.repair()
	if err != nil {
		return notes, err
	}
	id := hostSideID(network)
	j, err := journal.Open(s.store.liveJournal(id))
	if errors.Is(err, fs.ErrNotExist) {
		return notes, nil
	}
	if err == nil {
		err = j.Rename(s.store.opJournal(id) + detached)
	}
	if err != nil {
		return notes, err
	}
	u := &undoer{session: s}
	if err = u.undoJournal(j); err != nil {
		err = errors.Join(fmt.Errorf("remove the host side of network %s: %w", network, err), j.Close())
	}
	return append(notes, u.notes...), err
}

// CheckHost reports what of a network's host side is missing, in words.
func CheckHost(store *Store, network string, h HostSide) (missing []string, err error) {
	s, err := newSession(store, nil)
	if err != nil {
		return nil, err
	}
	defer s.close()
	id := hostSideID(network)
	r := &run{session: s, att: &Attachment{ID: id}}
	for _, step := range h.steps(&planner{session: s, id: id}) {
		res, ok := step.(resource)
		if !ok {
			continue
		}
		exists, err := res.exists(r)
		if err != nil {
			return missing, err
		}
		if !exists {
			missing = append(missing, strings.TrimSuffix(step.String(), " (created if absent)"))
		}
	}
	if _, err := os.Stat(store.liveJournal(id)); err != nil {
		missing = append(missing, "keep a journal of these")
	}
	return missing, nil
}
