package keep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"cleat/netns"
	"cleat/netns/find"
	"cleat/network/attach"
)

type outcome struct {
	id            string
	link          linkID
	namespace     attach.Sign // that it exists, if no process shows that
	action        string      // what was done; "" for nothing
	err           error
	nextIn        time.Duration // when to come back; 0 after an error means a backoff
	containerGone bool
	idle          bool // the container can't come back
	newAddress    bool // the addresses are to be announced again later
	remade        bool // the link had been removed, and was recreated
	waiting       bool // it is not yet time for another attempt at what failed
	incomplete    bool // what failed may be tried again before nextIn has passed
}

// retry returns when to try again after a number of failures.
func (o outcome) retry(failures int) time.Duration {
	switch {
	case o.nextIn == 0:
		return backoff(failures)
	case o.incomplete:
		return min(o.nextIn, backoff(failures))
	}
	return o.nextIn
}

// tend does what is due for one attachment. It is safe for concurrent use.
func (k *keeper) tend(ctx context.Context, t task) outcome {
	o := outcome{id: t.attachment.ID, nextIn: maxSleep}
	err := k.host.Do(func() error {
		s, err := k.status(ctx, t.attachment)
		if err != nil {
			return err
		}
		o.link.index = s.Index
		k.tendState(ctx, t, s, &o)
		return nil
	})
	if err != nil {
		o.err, o.nextIn = err, 0
	}
	return o
}

// status returns the state of an attachment. It first undoes what a command left that was killed.
func (k *keeper) status(ctx context.Context, a *attach.Attachment) (attach.Status, error) {
	s, err := attach.StatusOf(k.Attach.Store, a)
	if err != nil || s.State != attach.Busy {
		return s, err
	}
	notes, err := attach.Repair(ctx, k.Attach.Store)
	if err != nil {
		return s, err
	}
	if len(notes) > 0 {
		return s, errors.New(strings.Join(notes, "; "))
	}
	return attach.StatusOf(k.Attach.Store, a)
}

func (k *keeper) tendState(ctx context.Context, t task, s attach.Status, o *outcome) {
	switch s.State {
	case attach.Attached:
		o.link.nsid = k.listenTo(t.attachment)
		k.extend(ctx, t, o)
	case attach.Missing:
		k.recreate(ctx, t, o)
	case attach.Gone, attach.Wanted:
		if !t.attachment.Spec.Keep || !t.attachment.Container.CanReturn() {
			o.idle = true
			return
		}
		action := "attached again: the container had restarted"
		if s.State == attach.Wanted {
			action = "attached again: nothing of it was left"
		}
		k.reattach(ctx, t.attachment, action, o)
	case attach.Broken:
		o.err, o.nextIn = errors.New(strings.Join(s.Notes, "; ")), 0
	case attach.Busy:
		o.nextIn = time.Second // the command that is at work changes the file, which is an event
	}
}

// extend extends a lease, and announces addresses a second time.
func (k *keeper) extend(ctx context.Context, t task, o *outcome) {
	r, err := attach.MaintainLease(ctx, k.Attach, t.attachment.ID)
	longest := cmp.Or(t.longest, maxSleep)
	if o.link.nsid != ownNSID && !t.attachment.Spec.DHCP && (t.attachment.Container.PID != 0 || reportsStarts(t.attachment)) {
		longest = maxQuiet
	}
	o.nextIn, o.action, o.newAddress, o.waiting, o.incomplete = min(max(r.Next, 0), longest), r.Done, r.NewAddress, r.Waiting, r.Incomplete
	if !errors.Is(err, fs.ErrNotExist) { // it was detached meanwhile
		o.err = err
	}
	if t.attachment.Container.PID == 0 {
		_, o.namespace, _ = attach.NamespaceGone(k.Attach.Store, t.attachment) // without a sign, each event is a reason to look
	}
	if t.announce {
		if err := attach.AnnounceAgain(ctx, k.Attach.Store, t.attachment); err != nil && o.err == nil {
			o.err = fmt.Errorf("announce the addresses again: %w", err)
		}
	}
}

// recreate creates a link again that somebody removed: `cleat detach` is the way to remove it. The
// pauses grow if it is removed again and again.
func (k *keeper) recreate(ctx context.Context, t task, o *outcome) {
	switch {
	case !t.attachment.Spec.Keep:
		o.idle = true
	case t.holdOff > 0:
		o.nextIn = t.holdOff
	default:
		k.reattach(ctx, t.attachment, "recreated its link, which had been removed", o)
		o.remade = o.action != ""
	}
}

// reattach attaches again if the container is running.
func (k *keeper) reattach(ctx context.Context, a *attach.Attachment, action string, o *outcome) {
	_, err := attach.Reattach(ctx, k.Attach, a)
	var unasked *find.Unasked
	switch {
	case errors.Is(err, netns.ErrNotFound), errors.As(err, new(*find.NotRunning)), errors.Is(err, find.ErrGone),
		errors.Is(err, attach.ErrContainerGone):
		o.containerGone = true
	case errors.As(err, &unasked): // the container may be running: its engine does not answer
		o.containerGone, o.err, o.nextIn = true, err, 0
	case errors.Is(err, attach.ErrNotAttached): // it was detached, and its file is gone, which is an event
	case err != nil:
		o.err, o.nextIn = fmt.Errorf("attach again: %w", err), 0
	default:
		o.action, o.newAddress, o.nextIn = action, true, 0
		if k.Networks != nil && a.Spec.Network != "" {
			k.Networks.Attached(ctx, a)
		}
	}
}
