package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/dhcp"

	"golang.org/x/sys/unix"
)

// Config says where attachments are kept and how containers are found.
type Config struct {
	Store *Store
	// Find resolves what a person types to a container and its network namespace, which the
	// caller then owns. For a link that is handed over the namespace may be any.
	Find func(ctx context.Context, ref string) (Container, *netns.NS, error)

	// Background, if set, lets Attach return before neighbours are notified, and operations of package named
	// before all of their work is done. The caller must wait for it before the process exits.
	Background *sync.WaitGroup

	// Unlisted, if set, is called by DetachAttachment as soon as the link in the container is not listed
	// any more. After that the kernel waits until nothing uses the link: most of the time of detaching.
	Unlisted func()

	// Unannounced keeps Attach from announcing the addresses to the neighbours. It is for addresses
	// that nobody else had: neighbours know nothing wrong about them.
	Unannounced bool

	// AnnounceAfter, if set together with Background, is what announcements of addresses wait for. The caller
	// closes it after Attach has returned. Otherwise they begin when Attach returns.
	AnnounceAfter <-chan struct{}

	// Checkpoint, if set, is called before and after each record and step. Its error fails the
	// operation. Tests set it.
	Checkpoint func() error

	reattach *Attachment // see Reattach
}

// Result is what Attach did, or would do.
type Result struct {
	Attachment *Attachment
	Steps      []Step
	Notes      []string
	Lease      *dhcp.Lease // nil without DHCP
}

// ErrKilled, returned by Config.Checkpoint, makes the operation end as if its process were
// killed.
var ErrKilled = errors.New("stopped as if killed")

// Preview plans an attachment without changing anything.
func Preview(ctx context.Context, cfg Config, ref string, spec Spec) (*Result, error) {
	o, err := open(ctx, cfg, ref, spec)
	if err != nil {
		return nil, err
	}
	defer o.close()
	if spec.Name, err = o.chooseName(spec); err != nil {
		return nil, err
	}
	p, err := o.plan(spec)
	if err != nil {
		return nil, err
	}
	r := &run{session: o.session, ctx: ctx, att: p.attachment(), cont: o.cont}
	if err := r.checkSteps(p.steps); err != nil {
		return nil, err
	}
	return &Result{Attachment: r.att, Steps: p.steps, Notes: append(p.notes, missingKinds(p.steps)...)}, nil
}

// missingKinds returns a note for each kind of link that the steps need and the kernel lacks.
func missingKinds(steps []Step) (notes []string) {
	for _, s := range steps {
		var kinds []string
		switch s := s.(type) {
		case MakeLink:
			kinds = []string{s.Kind}
		case UseBridge:
			kinds = []string{"bridge"}
			if s.VLANFiltering {
				kinds = []string{"bridge-vlan"}
			}
		case UseVLAN:
			kinds = []string{"vlan"}
		case Shape:
			kinds = []string{"tbf", "ifb"}
		}
		for _, k := range kinds {
			var lack *link.Lack
			if errors.As(link.Probe(k), &lack) {
				notes = append(notes, "not possible on this machine: "+lack.Error())
			}
		}
	}
	return notes
}

// Attach gives a container a link. On error, including that of an ended context, everything
// is as before. The error is a *SpecError for a mistake in spec, a *TakenError if a name, an
// address or a network is in use, and a *link.Lack if the machine can't do it.
func Attach(ctx context.Context, cfg Config, ref string, spec Spec) (*Result, error) {
	o, err := open(ctx, cfg, ref, spec)
	if err != nil {
		return nil, err
	}
	finish := o.close
	defer func() { finish() }()
	if err := cfg.Store.prepare(); err != nil {
		return nil, err
	}
	j, notes, err := o.reserve(ctx, &spec)
	if err != nil {
		return nil, err
	}
	r := &run{session: o.session, ctx: ctx, journal: j, cont: o.cont, notes: notes}
	finish = func() { r.announcing.Wait(); o.close() }
	if cfg.Background != nil {
		r.ended, r.announceAfter = make(chan struct{}), cfg.AnnounceAfter
		defer close(r.ended)
	}
	p, err := o.plan(spec)
	if err == nil {
		r.att = p.attachment()
		r.notes = append(r.notes, p.notes...)
		err = r.attach(p.steps)
	}
	r.failed = err != nil
	if errors.Is(err, ErrKilled) {
		return nil, errors.Join(err, j.Close())
	}
	if err != nil {
		return nil, r.rollBack(err)
	}
	if cfg.Background != nil {
		later := finish
		finish = func() { cfg.Background.Go(later) }
	}
	return &Result{Attachment: r.att, Steps: append(p.steps, r.leaseSteps...), Notes: r.notes, Lease: r.lease}, nil
}

// Reattach makes the link of an attachment again, after its container or the machine was
// restarted or somebody removed the link. It first removes what is left of the old one. On
// error the attachment remains. The error wraps ErrNotAttached if the attachment was detached
// or replaced in the meantime.
func Reattach(ctx context.Context, cfg Config, a *Attachment) (*Result, error) {
	cfg.reattach = a
	return Attach(ctx, cfg, a.Container.QualifiedName(), a.Spec)
}

type operation struct {
	*session
	cfg       Config
	container Container
	cont      *namespace // of the container
}

// open finds the container, opens its namespace and the host's, and rejects what can't work
// before anything is changed.
func open(ctx context.Context, cfg Config, ref string, spec Spec) (*operation, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	c, ns, err := cfg.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	o := &operation{cfg: cfg, container: c}
	if o.session, err = newSession(cfg.Store, cfg.Checkpoint); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	if spec.HandOver { // the container's namespace need not exist yet
		o.cont = o.host
		return o, ns.Close()
	}
	o.cont, err = o.session.open(ns, c.Path)
	switch a := cfg.reattach; {
	case err != nil:
	case c.HostNetwork || o.host.ref.Inode == o.cont.ref.Inode:
		err = &SpecError{Param: "CONTAINER", Value: ref, Reason: "uses the host's own network, so nothing can be attached to it"}
	case a != nil && a.Container.OwnerUID != c.OwnerUID:
		err = fmt.Errorf("attach %s again: %w: another user's container has its name now", a.label(), ErrContainerGone)
	}
	if err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *operation) plan(spec Spec) (*planner, error) {
	p := &planner{session: o.session, unannounced: o.cfg.Unannounced, spec: spec, container: o.container, id: idOf(o.container, spec.Name), cont: o.cont}
	return p, p.plan()
}

func (p *planner) attachment() *Attachment {
	return &Attachment{Version: attachmentVersion, ID: p.id, Created: time.Now().UTC().Truncate(time.Second), BootID: p.store.BootID(), Container: p.container, Spec: p.spec}
}

// attach takes all steps and completes the journal.
func (r *run) attach(steps []Step) error {
	if err := r.journal.Append(entry{Begin: &header{Attachment: r.att, Host: r.host.ref, Container: r.containerRef()}}); err != nil {
		return err
	}
	if err := r.doSteps(steps); err != nil {
		return err
	}
	var st unix.Stat_t // our own descriptor keeps the namespace alive in any case
	if !r.att.Spec.HandOver && (unix.Stat(r.cont.ref.Path, &st) != nil || st.Ino != r.cont.ref.Inode) {
		return ErrContainerGone
	}
	r.notePromiscuous()
	m := outcome{Index: r.linkIndex, Peer: r.peer, Notes: r.notes}
	for _, s := range append(slices.Clip(steps), r.leaseSteps...) {
		m.Steps = append(m.Steps, s.String())
	}
	if err := r.journal.Append(entry{Made: &m}); err != nil {
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

// notePromiscuous notes that a macvlan's parent has more addresses than it can filter.
func (r *run) notePromiscuous() {
	if r.att.Spec.Kind != "macvlan" || r.att.Spec.Mode == passthru {
		return
	}
	if l, err := r.host.find(r.att.Spec.Parent); err == nil && l != nil && l.Attrs().Promisc > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%s is promiscuous: it can't filter this many Ethernet addresses, so it receives every packet; ipvlan needs no additional addresses", r.att.Spec.Parent))
	}
}

// rollBack undoes the steps that were taken before err occurred.
func (r *run) rollBack(err error) error {
	u := &undoer{session: r.session}
	if undoErr := u.all(r.undos); undoErr != nil {
		if !errors.Is(undoErr, ErrKilled) {
			undoErr = fmt.Errorf("roll back: %w; the next cleat command that changes networking tries again", undoErr)
		}
		return errors.Join(err, undoErr, r.journal.Close())
	}
	return errors.Join(err, r.journal.Remove())
}
