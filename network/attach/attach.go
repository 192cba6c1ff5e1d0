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

// Config is where attachments are kept and how containers are found.
type Config struct {
	Store *Store
	// Find resolves what a person types to a container and its network namespace,
	// which the caller then owns.
	Find func(ctx context.Context, ref string) (Container, *netns.NS, error)

	// Background has neighbours be told when Attach has returned already; whoever ends this
	// process waits for it. nil: Attach waits.
	Background *sync.WaitGroup

	reattach *Attachment  // that is attached once more, if it is wanted still
	testHook func() error // of tests, see run
}

// Result is what was done, or would be.
type Result struct {
	Attachment *Attachment
	Steps      []Step
	Notes      []string
	Lease      *dhcp.Lease // what a DHCP server gave; nil: none was asked
}

// errStop is what a test's trial returns to have everything end as if the process
// were killed.
var errKilled = errors.New("stopped as if killed")

// Preview plans an attachment, and changes nothing.
func Preview(ctx context.Context, cfg Config, ref string, want Spec) (*Result, error) {
	o, err := open(ctx, cfg, ref, want)
	if err != nil {
		return nil, err
	}
	defer o.close()
	if want.Name, err = o.chooseName(want); err != nil {
		return nil, err
	}
	p, err := o.plan(want)
	if err != nil {
		return nil, err
	}
	r := &run{ctx: ctx, store: cfg.Store, att: o.attachment(p), host: o.host, cont: o.cont}
	if err := r.checkSteps(p.steps); err != nil {
		return nil, err
	}
	return &Result{Attachment: r.att, Steps: p.steps, Notes: append(p.notes, missingKinds(p.steps)...)}, nil
}

// lacks says what of steps can't be done here, as the kernel lacks a kind of link.
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
				notes = append(notes, "this can't be done here: "+lack.Error())
			}
		}
	}
	return notes
}

// Attach gives a container a link. On error, of the context's too, everything is
// as it was. What is wrong with what is wanted is a *SpecError; what others have
// is a *TakenError; what the machine can't do is a *link.Lack.
func Attach(ctx context.Context, cfg Config, ref string, want Spec) (*Result, error) {
	o, err := open(ctx, cfg, ref, want)
	if err != nil {
		return nil, err
	}
	finish := o.close
	defer func() { finish() }()
	if err := cfg.Store.prepare(); err != nil {
		return nil, err
	}
	j, notes, err := o.reserve(ctx, &want)
	if err != nil {
		return nil, err
	}
	r := &run{ctx: ctx, store: cfg.Store, journal: j, host: o.host, cont: o.cont, testHook: cfg.testHook, notes: notes}
	finish = func() { r.announcing.Wait(); o.close() }
	p, err := o.plan(want)
	if err == nil {
		r.att = o.attachment(p)
		r.notes = append(r.notes, p.notes...)
		err = r.attach(p.steps)
	}
	if errors.Is(err, errKilled) {
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

// Reattach attaches what is wanted once more: its container, or the machine, began anew,
// or somebody removed its link. What is left of it goes first. On error it stays wanted.
// ErrNotAttached: it was detached meanwhile, or something else is wanted by its name.
func Reattach(ctx context.Context, cfg Config, a *Attachment) (*Result, error) {
	cfg.reattach = a
	return Attach(ctx, cfg, a.Container.QualifiedName(), a.Spec)
}

// operation is what attaching and planning have open.
type operation struct {
	cfg       Config
	container Container
	host      *namespace
	cont      *namespace
}

// open finds the container, and refuses what can't be before anything is touched.
func open(ctx context.Context, cfg Config, ref string, want Spec) (*operation, error) {
	if err := want.Check(); err != nil {
		return nil, err
	}
	c, ns, err := cfg.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	o := &operation{cfg: cfg, container: c}
	if o.cont, err = newNamespace(ns, c.Path); err != nil {
		return nil, err
	}
	if o.host, err = hostNamespace(); err != nil {
		o.cont.close()
		return nil, err
	}
	switch again := cfg.reattach; {
	case c.HostNetwork || o.host.ref.Inode == o.cont.ref.Inode:
		o.close()
		return nil, &SpecError{Param: "CONTAINER", Value: ref, Reason: "has the host's own network: there is nothing to attach"}
	case again != nil && again.Container.OwnerUID != c.OwnerUID:
		o.close()
		return nil, fmt.Errorf("attach %s again: %w: its name is one of another user's container now", again.label(), ErrContainerGone)
	}
	return o, nil
}

func (o *operation) close() {
	o.host.close()
	o.cont.close()
}

func (o *operation) plan(want Spec) (*planner, error) {
	p := &planner{spec: want, container: o.container, id: idOf(o.container, want.Name), host: o.host, cont: o.cont, store: o.cfg.Store}
	return p, p.plan()
}

func (o *operation) attachment(p *planner) *Attachment {
	return &Attachment{Version: attachmentVersion, ID: p.id, Created: time.Now().UTC().Truncate(time.Second), BootID: p.store.BootID(), Container: o.container, Spec: p.spec}
}

// complete does all that there is to do.
func (r *run) attach(steps []Step) error {
	if err := r.journal.Append(entry{Begin: &header{Attachment: r.att, Host: r.host.ref, Container: r.cont.ref}}); err != nil {
		return err
	}
	if err := r.doSteps(steps); err != nil {
		return err
	}
	if !r.containerExists() {
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

// notePromiscuous says so when a macvlan's parent has more addresses than it can
// tell apart.
func (r *run) notePromiscuous() {
	if r.att.Spec.Kind != "macvlan" || r.att.Spec.Mode == passthru {
		return
	}
	if l, err := r.host.find(r.att.Spec.Parent); err == nil && l != nil && l.Attrs().Promisc > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%s is promiscuous: it can't filter so many Ethernet addresses, and takes every packet; ipvlan needs none", r.att.Spec.Parent))
	}
}

// alive tells whether the container still has its namespace: our own descriptor
// keeps that there, whether or not anybody lives in it.
func (r *run) containerExists() bool {
	var st unix.Stat_t
	return unix.Stat(r.cont.ref.Path, &st) == nil && st.Ino == r.cont.ref.Inode
}

// takeBack undoes what was done before err.
func (r *run) rollBack(err error) error {
	u := newUndoer(r.store, r.host, r.testHook)
	defer u.close()
	if back := u.all(r.undos); back != nil {
		if !errors.Is(back, errKilled) {
			back = fmt.Errorf("taking it back failed, too; the next cleat command that changes wiring tries again: %w", back)
		}
		return errors.Join(err, back, r.journal.Close())
	}
	return errors.Join(err, r.journal.Remove())
}
