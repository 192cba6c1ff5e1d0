package keep

import (
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

// outcome is what came of looking after one attachment.
type outcome struct {
	id     string
	index  int    // of its link
	did    string // "": nothing
	err    error
	in     time.Duration // when to come back; after an error 0 means by how often there was one
	gone   bool          // its container is not there
	idle   bool          // nor will it be
	news   bool          // they are to be, in a while
	remade bool          // somebody had removed its link
	// waiting: it is not yet time to try again what failed.
	waiting bool
	unset   bool // what failed may be tried again before in has passed
}

// retry is when something is tried again that failed so often.
func (o outcome) retry(failures int) time.Duration {
	switch {
	case o.in == 0:
		return backoff(failures)
	case o.unset:
		return min(o.in, backoff(failures))
	}
	return o.in
}

// tend does what is due about one attachment. It may be called by several goroutines.
func (k *keeper) tend(ctx context.Context, w work) outcome {
	o := outcome{id: w.a.ID, in: atMost}
	err := k.host.Do(func() error {
		s, err := k.look(ctx, w.a)
		if err != nil {
			return err
		}
		o.index = s.Index
		k.tendState(ctx, w, s, &o)
		return nil
	})
	if err != nil {
		o.err, o.in = err, 0
	}
	return o
}

// look is how it is; what a command left that died at it is undone first.
func (k *keeper) look(ctx context.Context, a *attach.Attachment) (attach.Status, error) {
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

func (k *keeper) tendState(ctx context.Context, w work, s attach.Status, o *outcome) {
	switch s.State {
	case attach.Attached:
		k.listenTo(w.a)
		k.extend(ctx, w, o)
	case attach.Missing:
		k.missing(ctx, w, o)
	case attach.Gone, attach.Wanted:
		if !w.a.Spec.Keep || !w.a.Container.CanReturn() {
			o.idle = true
			return
		}
		why := "its container had begun anew"
		if s.State == attach.Wanted {
			why = "nothing of it was there"
		}
		k.again(ctx, w.a, "attached it again: "+why, o)
	case attach.Broken:
		o.err, o.in = errors.New(strings.Join(s.Notes, "; ")), 0
	case attach.Busy:
		o.in = time.Second // whoever is at work on it will tell by its file
	}
}

// extend tends a lease, and tells neighbours a second time.
func (k *keeper) extend(ctx context.Context, w work, o *outcome) {
	t, err := attach.MaintainLease(ctx, k.Attach, w.a.ID)
	o.in, o.did, o.news, o.waiting, o.unset = within(t.Next), t.Done, t.NewAddress, t.Waiting, t.Incomplete
	if errors.Is(err, fs.ErrNotExist) { // it was detached meanwhile
		err = nil
	}
	o.err = err
	if w.tell {
		if err := attach.AnnounceAgain(ctx, k.Attach.Store, w.a); err != nil && o.err == nil {
			o.err = fmt.Errorf("tell the neighbours again: %w", err)
		}
	}
}

// missing makes a link again that somebody removed: who wants it gone detaches it. Where
// somebody goes on removing it there are longer and longer pauses.
func (k *keeper) missing(ctx context.Context, w work, o *outcome) {
	switch {
	case !w.a.Spec.Keep:
		o.idle = true
	case w.after > 0:
		o.in = w.after
	default:
		k.again(ctx, w.a, "made its link again, which somebody had removed", o)
		o.remade = o.did != ""
	}
}

// again attaches it once more if its container is there.
func (k *keeper) again(ctx context.Context, a *attach.Attachment, did string, o *outcome) {
	_, err := attach.Reattach(ctx, k.Attach, a)
	var unasked *find.Unasked
	switch {
	case absent(err):
		o.gone = true
	case errors.As(err, &unasked): // it may come with its engine
		o.gone, o.err, o.in = true, err, 0
	case errors.Is(err, attach.ErrNotAttached): // it was detached, which its file tells
	case err != nil:
		o.err, o.in = fmt.Errorf("attach again: %w", err), 0
	default:
		o.did, o.news, o.in = did, true, 0
	}
}

// absent tells whether an error is that the container does not run.
func absent(err error) bool {
	return errors.Is(err, netns.ErrNotFound) || errors.As(err, new(*find.NotRunning)) ||
		errors.Is(err, find.ErrGone) || errors.Is(err, attach.ErrContainerGone)
}
