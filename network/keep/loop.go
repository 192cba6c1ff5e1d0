package keep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"cleat/netns/find"
	"cleat/network/attach"
)

// maxTasks is how many attachments are worked on at once. A silent DHCP server makes one wait for
// ten seconds, and a container that has restarted must not wait for that.
const maxTasks = 8

// repair undoes what commands left that were killed.
func (k *keeper) repair(ctx context.Context) error {
	notes, err := attach.Repair(ctx, k.Attach.Store)
	for _, n := range notes {
		k.Log("%s", n)
	}
	return err
}

func (k *keeper) run(ctx context.Context) error {
	if err := k.repair(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var listeners sync.WaitGroup
	defer listeners.Wait()
	defer cancel()
	if err := k.listen(ctx, &listeners); err != nil {
		return err
	}
	k.load() // again: something may have changed before the directory was watched
	k.Ready(false)
	for ctx.Err() == nil {
		sleep := k.startDue(ctx)
		if k.UntilIdle && k.running == 0 && k.clients.Load() == 0 {
			idle, again := k.allIdle()
			if idle && k.Busy != nil && k.Busy() {
				idle, again = false, busyCheck
			}
			if idle {
				return nil
			}
			sleep = min(sleep, again)
		}
		select {
		case <-ctx.Done():
		case <-time.After(sleep):
		case <-k.events.wake:
			k.handleEvents()
		case o := <-k.done:
			k.running--
			k.finish(o)
		}
	}
	for ; k.running > 0; k.running-- { // tasks end soon: they undo or complete what they do
		k.finish(<-k.done)
	}
	return nil
}

// listen starts what adds events, until ctx ends.
func (k *keeper) listen(ctx context.Context, listeners *sync.WaitGroup) error {
	if err := k.events.watchAttachments(ctx, listeners, k.Attach.Store); err != nil {
		return err
	}
	var err error
	if k.links, err = listenLinks(ctx, listeners, k.events); err != nil {
		k.Log("removed links are only noticed every %s: %v", maxSleep, err)
	}
	if k.Answer != nil {
		if err := k.serveClients(ctx, listeners); err != nil {
			k.Log("commands are not served, and do their work themselves: %v", err)
		}
	}
	if k.Networks != nil {
		listeners.Go(func() { k.Networks.Run(ctx) })
	}
	if k.Listen == nil {
		return nil
	}
	listeners.Go(func() {
		if err := k.Listen(ctx, k.events.containerEvent); err != nil {
			k.events.logLater("containers are looked for every %s: %v", lookEvery, err)
		}
	})
	return nil
}

// startDue starts tasks for what is due, and returns how long to sleep before more is.
func (k *keeper) startDue(ctx context.Context) time.Duration {
	now, sleep := time.Now(), maxSleep
	for _, it := range k.items {
		switch wait := it.nextDue().Sub(now); {
		case it.working || it.idle:
		case wait > 0:
			sleep = min(sleep, wait)
		case k.running < maxTasks:
			k.running++
			it.working = true
			t := it.task(now)
			t.longest = max(maxSleep, time.Duration(len(k.items))*perItem)
			if t.announce {
				it.announceAt = time.Time{} // if nothing is there to announce now, it is announced when it is attached
			}
			go func() { k.done <- k.tend(ctx, t) }()
		}
	}
	return sleep
}

// allIdle reports whether nothing is left to keep; otherwise again is when to ask again.
func (k *keeper) allIdle() (idle bool, again time.Duration) {
	for _, it := range k.items {
		if !it.idle {
			return false, maxSleep
		}
	}
	if k.Networks != nil {
		return k.Networks.Unused()
	}
	return true, 0
}

// handleEvents makes items due that events concern.
func (k *keeper) handleEvents() {
	e, now := k.events.take(), time.Now()
	for _, text := range e.messages {
		k.Log("%s", text)
	}
	if k.Networks != nil && (e.engine || len(e.ended) > 0) {
		k.Networks.ContainersChanged()
	}
	if e.reload {
		k.load()
	} else {
		for id := range e.changed {
			k.reload(id)
		}
	}
	for _, it := range k.items {
		switch {
		case e.concerns(it) && it.working:
			it.eventPending = true
		case e.concerns(it):
			it.wake(now)
		case e.linksLost && it.due.After(now.Add(lostDelay)):
			it.due, it.idle = now.Add(lostDelay), false
		}
	}
}

// load reads all attachments, and drops the items that are none any more.
func (k *keeper) load() {
	wanted := map[string]bool{}
	all, err := keptAttachments(k.Attach.Store)
	before := k.unreadable
	if k.unreadable = ""; err != nil {
		k.unreadable = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if k.unreadable != "" && k.unreadable != before {
		k.Log("not kept: %s", k.unreadable)
	}
	for _, a := range all {
		wanted[a.ID] = true
		k.update(a)
	}
	for id := range k.items {
		if !wanted[id] {
			k.drop(id)
		}
	}
}

// reload is load for one attachment. With many attachments load takes long, and they mostly change
// one at a time.
func (k *keeper) reload(id string) {
	a, err := k.Attach.Store.Attachment(id)
	switch {
	case k.unreadable != "" || err != nil && !errors.Is(err, fs.ErrNotExist):
		k.load() // logs what can't be read, and keeps what is known of it
	case err == nil && a.NeedsKeeper():
		k.update(a)
	case k.items[id] != nil:
		k.drop(id)
	}
}

// update creates the item of an attachment, or updates it if the attachment has changed.
func (k *keeper) update(a *attach.Attachment) {
	it := k.items[a.ID]
	if it != nil && sameAttachment(it.attachment, a) {
		return
	}
	if it == nil {
		it = &item{}
		if r, err := k.Attach.Store.KeeperReport(a.ID); err == nil && r != nil {
			it.report = *r
		}
		k.items[a.ID] = it
	}
	it.attachment, it.due, it.idle, it.changed = a, time.Time{}, false, it.working
	if it.announceAt.IsZero() && time.Since(a.Created) < announceYoung {
		it.announceAt = time.Now().Add(announceAfter)
	}
	it.follow(k.events)
}

// drop forgets an item, at once or when its task has ended.
func (k *keeper) drop(id string) {
	if it := k.items[id]; it.working {
		it.changed = true
		return
	}
	k.forget(id)
	if err := k.Attach.Store.DeleteKeeperReport(id); err != nil {
		k.Log("%s: %v", id, err)
	}
}

// sameAttachment reports whether two attachments result from the same command for the same
// container.
func sameAttachment(a, b *attach.Attachment) bool {
	return a.Created.Equal(b.Created) && a.Container.PID == b.Container.PID && a.Container.ID == b.Container.ID
}

func (k *keeper) forget(id string) {
	k.items[id].initProcess.close()
	delete(k.items, id)
}

// finish records the outcome of a task, reports it, and plans the next one.
func (k *keeper) finish(o outcome) {
	it := k.items[o.id]
	it.working = false
	it.link, it.namespace, it.containerGone, it.idle = o.link, o.namespace, o.containerGone, o.idle
	now := time.Now()
	if o.newAddress {
		it.announceAt = now.Add(announceAfter)
	}
	it.countRemoval(o, now)
	k.report(it, o, now)
	switch {
	case o.err != nil:
		it.due = now.Add(o.retry(it.report.Failures))
	case o.containerGone:
		it.due = now.Add(nextLook(it.looks, k.Listen != nil && reportsStarts(it.attachment)))
		it.looks++
	default:
		it.due = now.Add(o.nextIn)
	}
	if it.eventPending {
		it.eventPending = false
		it.wake(now)
	}
	if it.changed {
		it.changed, it.due, it.idle = false, time.Time{}, false
		k.reload(o.id) // drops it if it was detached meanwhile
	}
}

func (it *item) countRemoval(o outcome, now time.Time) {
	if !o.remade {
		return
	}
	if now.Sub(it.remadeAt) > removalMemory {
		it.removals = 0
	}
	it.removals++
	it.remadeAt = now
}

// report logs what was done or failed, and saves it for `cleat keep --status`.
func (k *keeper) report(it *item, o outcome, now time.Time) {
	r, before := &it.report, it.report
	if o.action != "" {
		r.Action, r.ActionTime = o.action, now.UTC().Truncate(time.Second)
		k.Log("%s: %s", o.id, o.action)
	}
	switch {
	case o.err == nil && o.waiting: // for the next attempt at what failed
	case o.err == nil:
		r.Error, r.FailingSince, r.Failures, r.Next = "", time.Time{}, 0, time.Time{}
	default:
		times := ""
		if r.Failures++; r.Failures == 1 {
			r.FailingSince = now.UTC().Truncate(time.Second)
		} else {
			times = fmt.Sprintf(" (%d times)", r.Failures)
		}
		r.Error, r.Next = o.err.Error(), now.Add(o.retry(r.Failures)).UTC().Truncate(time.Second)
		if worthLogging(r.Failures) {
			k.Log("%s: %v%s", o.id, o.err, times)
		}
	}
	if *r == before {
		return
	}
	if err := k.Attach.Store.SaveKeeperReport(o.id, *r); err != nil {
		k.Log("%s: %v", o.id, err)
	}
}

// reportsStarts reports whether Config.Listen reports that the attachment's container starts. It
// does not listen to other users' engines (find.Listen).
func reportsStarts(a *attach.Attachment) bool {
	if a.Container.OwnerUID != 0 && a.Container.OwnerUID != os.Geteuid() {
		return false
	}
	switch a.Container.Engine {
	case find.Docker, find.Podman, find.Containerd, find.Named:
		return true
	}
	return false
}
