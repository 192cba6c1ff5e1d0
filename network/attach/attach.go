package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/netns"
	"cleat/network/dhcp"
	"cleat/network/journal"

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

	again *Attachment  // that is attached once more, if it is wanted still
	trial func() error // of tests, see run
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
var errStop = errors.New("stopped as if killed")

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
	if err := r.foretell(p.steps); err != nil {
		return nil, err
	}
	return &Result{Attachment: r.att, Steps: p.steps, Notes: append(p.notes, lacks(p.steps)...)}, nil
}

// lacks says what of steps can't be done here, as the kernel lacks a kind of link.
func lacks(steps []Step) (notes []string) {
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
	j, notes, err := o.begin(ctx, &want)
	if err != nil {
		return nil, err
	}
	r := &run{ctx: ctx, store: cfg.Store, journal: j, host: o.host, cont: o.cont, trial: cfg.trial, notes: notes}
	finish = func() { r.announcing.Wait(); o.close() }
	p, err := o.plan(want)
	if err == nil {
		r.att = o.attachment(p)
		r.notes = append(r.notes, p.notes...)
		err = r.complete(p.steps)
	}
	if errors.Is(err, errStop) {
		return nil, errors.Join(err, j.Close())
	}
	if err != nil {
		return nil, r.takeBack(err)
	}
	if cfg.Background != nil {
		later := finish
		finish = func() { cfg.Background.Go(later) }
	}
	return &Result{Attachment: r.att, Steps: append(p.steps, r.came...), Notes: r.notes, Lease: r.lease}, nil
}

// operation is what attaching and planning have open.
type operation struct {
	cfg  Config
	c    Container
	host *side
	cont *side
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
	o := &operation{cfg: cfg, c: c}
	if o.cont, err = newSide(ns, c.Path); err != nil {
		return nil, err
	}
	if o.host, err = here(); err != nil {
		o.cont.close()
		return nil, err
	}
	switch again := cfg.again; {
	case c.HostNetwork || o.host.place.Inode == o.cont.place.Inode:
		o.close()
		return nil, &SpecError{Param: "CONTAINER", Value: ref, Reason: "has the host's own network: there is nothing to attach"}
	case again != nil && again.Container.OwnerUID != c.OwnerUID:
		o.close()
		return nil, fmt.Errorf("attach %s again: %w: its name is one of another user's container now", again.called(), ErrContainerGone)
	}
	return o, nil
}

func (o *operation) close() {
	o.host.close()
	o.cont.close()
}

func (o *operation) plan(want Spec) (*planner, error) {
	p := &planner{want: want, c: o.c, id: idOf(o.c, want.Name), host: o.host, cont: o.cont, store: o.cfg.Store}
	return p, p.plan()
}

func (o *operation) attachment(p *planner) *Attachment {
	return &Attachment{Version: attachmentVersion, ID: p.id, Created: time.Now().UTC().Truncate(time.Second), BootID: p.store.BootID(), Container: o.c, Spec: p.want}
}

// begin repairs what others left, chooses the link's name, and takes possession of
// the attachment's id: a journal of that name. Whoever is at work on the same
// attachment is waited for.
func (o *operation) begin(ctx context.Context, want *Spec) (*journal.Journal, []string, error) {
	wanted := *want
	for {
		name, err := o.chooseName(wanted)
		if err != nil {
			return nil, nil, err
		}
		id := idOf(o.c, name)
		j, notes, err := o.possess(ctx, id)
		var busy busyError
		switch {
		case errors.Is(err, errMeanwhile):
			continue
		case !errors.As(err, &busy):
			want.Name = name
			return j, notes, err
		}
		waited, err := waitFor(ctx, string(busy))
		if err != nil {
			return nil, nil, err
		}
		if !waited && len(notes) > 0 {
			return nil, nil, fmt.Errorf("attach %s of %s: %s", name, o.c.ShortName(), notes[0])
		}
	}
}

// busyError is the path of a journal that has to go first.
type busyError string

func (e busyError) Error() string { return "another cleat is at work on it: " + string(e) }

// errMeanwhile: somebody has taken the name since it was found to be free.
var errMeanwhile = errors.New("another cleat has just attached it")

// possess is a busyError when somebody else has the id, and errMeanwhile when he is done.
func (o *operation) possess(ctx context.Context, id string) (*journal.Journal, []string, error) {
	s := o.cfg.Store
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	notes, err := s.repair(o.host, o.cfg.trial)
	if err != nil {
		return nil, nil, err
	}
	if path := s.busy(id); path != "" {
		return nil, notes, busyError(path)
	}
	if there, err := s.linkThere(id, o.host); err != nil {
		return nil, notes, err
	} else if there {
		return nil, notes, errMeanwhile
	}
	if o.cfg.again != nil {
		if err := s.stillWanted(o.cfg.again); err != nil {
			return nil, notes, err
		}
	}
	j, err := journal.Create(s.op(id))
	if err != nil {
		return nil, notes, err
	}
	if err := s.retire(id, o.host, o.cfg.trial); err != nil {
		return nil, nil, errors.Join(err, j.Remove())
	}
	return j, notes, nil
}

// waitFor waits until nobody owns the journal at path; false: nobody does.
func waitFor(ctx context.Context, path string) (waited bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("wait for another cleat: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		waited = true
		if err := statedir.WaitLock(ctx, f); err != nil {
			return true, err
		}
	}
	return waited, f.Close()
}

// complete does all that there is to do.
func (r *run) complete(steps []Step) error {
	if err := r.journal.Append(entry{Begin: &begin{Attachment: r.att, Host: r.host.place, Container: r.cont.place}}); err != nil {
		return err
	}
	if err := r.carryOut(steps); err != nil {
		return err
	}
	if !r.alive() {
		return ErrContainerGone
	}
	r.notePromiscuous()
	m := made{Index: r.link, Peer: r.peer, Notes: r.notes}
	for _, s := range append(slices.Clip(steps), r.came...) {
		m.Steps = append(m.Steps, s.String())
	}
	if err := r.journal.Append(entry{Made: &m}); err != nil {
		return err
	}
	if err := r.point(); err != nil {
		return err
	}
	if err := r.journal.Rename(r.store.live(r.att.ID)); err != nil {
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
func (r *run) alive() bool {
	var st unix.Stat_t
	return unix.Stat(r.cont.place.Path, &st) == nil && st.Ino == r.cont.place.Inode
}

// takeBack undoes what was done before err.
func (r *run) takeBack(err error) error {
	u := newUndoer(r.store, r.host, r.trial)
	defer u.close()
	if back := u.all(r.undos); back != nil {
		if !errors.Is(back, errStop) {
			back = fmt.Errorf("taking it back failed, too; the next cleat command that changes wiring tries again: %w", back)
		}
		return errors.Join(err, back, r.journal.Close())
	}
	return errors.Join(err, r.journal.Remove())
}
