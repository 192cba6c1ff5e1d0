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

// atOnce is how many attachments are worked at: a DHCP server that is silent has one
// wait for ten seconds, and a container that is there again must not.
const atOnce = 8

// repair undoes what commands left that died.
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
	var heard sync.WaitGroup
	defer heard.Wait()
	defer cancel()
	if err := k.listen(ctx, &heard); err != nil {
		return err
	}
	k.load() // what came before the directory was watched
	k.Ready(false)
	for ctx.Err() == nil {
		in := k.begin(ctx)
		if k.UntilIdle && k.busy == 0 && k.clients.Load() == 0 && k.nothing() {
			return nil
		}
		timer := time.NewTimer(in)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-k.woken.wake:
			k.happened()
		case o := <-k.done:
			k.busy--
			k.take(o)
		}
		timer.Stop()
	}
	for ; k.busy > 0; k.busy-- { // what is half done is undone, or done
		k.take(<-k.done)
	}
	return nil
}

// listen starts what wakes the loop, until ctx ends.
func (k *keeper) listen(ctx context.Context, heard *sync.WaitGroup) error {
	if err := k.woken.watchWanted(ctx, heard, k.Attach.Store); err != nil {
		return err
	}
	links, err := listenLinks(ctx, heard, k.woken)
	if err != nil {
		k.Log("nobody says that a link was removed, it is looked for every %s: %v", atMost, err)
	}
	k.links = links
	if k.Answer != nil {
		if err := k.serveClients(ctx, heard); err != nil {
			k.Log("commands are not served, and run as if no keeper did: %v", err)
		}
	}
	if k.Listen == nil {
		return nil
	}
	heard.Go(func() {
		if err := k.Listen(ctx, k.woken.engines); err != nil {
			k.woken.note("containers are looked for every %s: %v", lookEvery, err)
		}
	})
	return nil
}

// begin has what is due worked at, and says in how long more will be.
func (k *keeper) begin(ctx context.Context) time.Duration {
	now, in := time.Now(), atMost
	for _, it := range k.items {
		switch wait := it.next().Sub(now); {
		case it.working || it.idle:
		case wait > 0:
			in = min(in, wait)
		case k.busy < atOnce:
			k.busy++
			it.working = true
			w := it.work(now)
			if w.tell {
				it.tell = time.Time{} // what can't be told now, as nothing is there, is told when it is
			}
			go func() { k.done <- k.tend(ctx, w) }()
		}
	}
	return in
}

// nothing tells whether there is nothing to be kept.
func (k *keeper) nothing() bool {
	for _, it := range k.items {
		if !it.idle {
			return false
		}
	}
	return true
}

// happened makes due what something happened to.
func (k *keeper) happened() {
	h, now := k.woken.take(), time.Now()
	for _, text := range h.said {
		k.Log("%s", text)
	}
	if h.unread {
		k.load()
	} else {
		for id := range h.wanted {
			k.loadOne(id)
		}
	}
	for _, it := range k.items {
		switch {
		case h.concerns(it) && it.working:
			it.woken = true
		case h.concerns(it):
			it.wake(now)
		case h.lost && it.due.After(now.Add(lostWithin)):
			it.due, it.idle = now.Add(lostWithin), false
		}
	}
}

// load takes up what is wanted now, and forgets what is not.
func (k *keeper) load() {
	now := map[string]bool{}
	all, err := kept(k.Attach.Store)
	before := k.unread
	if k.unread = ""; err != nil {
		k.unread = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if k.unread != "" && k.unread != before {
		k.Log("not kept: %s", k.unread)
	}
	for _, a := range all {
		now[a.ID] = true
		k.takeUp(a)
	}
	for id := range k.items {
		if !now[id] {
			k.unwanted(id)
		}
	}
}

// loadOne does so with one: of many, which reading takes its time, one changes at a time.
func (k *keeper) loadOne(id string) {
	a, err := k.Attach.Store.Attachment(id)
	switch {
	case k.unread != "" || err != nil && !errors.Is(err, fs.ErrNotExist):
		k.load() // says what can't be read, and what is known of that all the same
	case err == nil && a.NeedsKeeper():
		k.takeUp(a)
	case k.items[id] != nil:
		k.unwanted(id)
	}
}

// takeUp has an attachment kept as it is wanted now.
func (k *keeper) takeUp(a *attach.Attachment) {
	it := k.items[a.ID]
	if it != nil && same(it.a, a) {
		return
	}
	if it == nil {
		it = k.newItem(a.ID)
	}
	it.a, it.due, it.idle, it.again = a, time.Time{}, false, it.working
	if it.tell.IsZero() && time.Since(a.Created) < tellYoung {
		it.tell = time.Now().Add(tellAfter)
	}
	it.follow(k.woken)
}

// unwanted forgets an item, or has it forgotten once nobody works at it.
func (k *keeper) unwanted(id string) {
	if it := k.items[id]; it.working {
		it.again = true
		return
	}
	k.forget(id)
	if err := k.Attach.Store.DeleteKeeperReport(id); err != nil {
		k.Log("%s: %v", id, err)
	}
}

// newItem has what a keeper said before.
func (k *keeper) newItem(id string) *item {
	it := &item{}
	if r, err := k.Attach.Store.KeeperReport(id); err == nil && r != nil {
		it.report = *r
	}
	k.items[id] = it
	return it
}

// same tells whether two are the same attaching of the same.
func same(a, b *attach.Attachment) bool {
	return a.Created.Equal(b.Created) && a.Container.PID == b.Container.PID && a.Container.ID == b.Container.ID
}

func (k *keeper) forget(id string) {
	k.items[id].first.close()
	delete(k.items, id)
}

// take notes what came of working at an item, says it, and plans what is next.
func (k *keeper) take(o outcome) {
	it := k.items[o.id]
	it.working = false
	it.index, it.gone, it.idle = o.index, o.gone, o.idle
	now := time.Now()
	if o.news {
		it.tell = now.Add(tellAfter)
	}
	it.countRemoved(o, now)
	k.say(it, o, now)
	switch {
	case o.err != nil:
		it.due = now.Add(o.retry(it.report.Failures))
	case o.gone:
		it.due = now.Add(untilLook(it.looks, heard(it.a, k.Listen != nil)))
		it.looks++
	default:
		it.due = now.Add(o.in)
	}
	if it.woken {
		it.woken = false
		it.wake(now)
	}
	if it.again {
		it.again, it.due, it.idle = false, time.Time{}, false
		k.loadOne(o.id) // what is not wanted any more could not be forgotten
	}
}

func (it *item) countRemoved(o outcome, now time.Time) {
	if !o.remade {
		return
	}
	if now.Sub(it.remade) > calm {
		it.removed = 0
	}
	it.removed++
	it.remade = now
}

// say logs what was done, or could not be, and keeps it for people who ask.
func (k *keeper) say(it *item, o outcome, now time.Time) {
	r, before := &it.report, it.report
	if o.did != "" {
		r.Action, r.ActionTime = o.did, now.UTC().Truncate(time.Second)
		k.Log("%s: %s", o.id, o.did)
	}
	switch {
	case o.err == nil && o.waiting: // for the next attempt at what failed
	case o.err == nil:
		r.Error, r.FailingSince, r.Failures, r.Next = "", time.Time{}, 0, time.Time{}
	default:
		if r.Failures++; r.Failures == 1 {
			r.FailingSince = now.UTC().Truncate(time.Second)
		}
		r.Error, r.Next = o.err.Error(), now.Add(o.retry(r.Failures)).UTC().Truncate(time.Second)
		if worthSaying(r.Failures) {
			k.Log("%s: %v%s", o.id, o.err, times(r.Failures))
		}
	}
	if *r == before {
		return
	}
	if err := k.Attach.Store.SaveKeeperReport(o.id, *r); err != nil {
		k.Log("%s: %v", o.id, err)
	}
}

func times(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(" (%d times)", n)
}

// heard reports whether an attachment's engine says when containers begin. Other users'
// engines are not listened to (find.Listen).
func heard(a *attach.Attachment, listening bool) bool {
	if a.Container.OwnerUID != 0 && a.Container.OwnerUID != os.Geteuid() {
		return false
	}
	switch a.Container.Engine {
	case find.Docker, find.Podman, find.Containerd, find.Named:
		return listening
	}
	return false
}
