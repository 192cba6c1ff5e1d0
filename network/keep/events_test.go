package keep

import (
	"encoding/binary"
	"errors"
	"maps"
	"os/exec"
	"slices"
	"testing"
	"time"

	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// The end of a container's first process is an event that concerns that container only.
func TestFollow(t *testing.T) {
	process := exec.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	w := newEventQueue()
	web := &item{attachment: &attach.Attachment{Container: attach.Container{PID: process.Process.Pid}}}
	db := &item{attachment: &attach.Attachment{}}
	for _, it := range []*item{web, db} {
		it.follow(w)
		defer it.initProcess.close()
	}
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	process.Wait()
	select {
	case <-w.wake:
	case <-time.After(5 * time.Second):
		t.Fatal("no event")
	}
	if h := w.take(); !h.concerns(web) || h.concerns(db) {
		t.Errorf("the event concerns web: %t, db: %t", h.concerns(web), h.concerns(db))
	}
}

// event returns an inotify event about a file. The kernel pads names with zero bytes.
func event(mask uint32, name string) []byte {
	b := make([]byte, unix.SizeofInotifyEvent+(len(name)+16)&^15)
	binary.NativeEndian.PutUint32(b[4:], mask)
	binary.NativeEndian.PutUint32(b[12:], uint32(len(b)-unix.SizeofInotifyEvent))
	copy(b[unix.SizeofInotifyEvent:], name)
	return b
}

// Only changed attachments are read again, unless it is not known which changed.
func TestAddFiles(t *testing.T) {
	for name, c := range map[string]struct {
		events []byte
		err    error
		ids    []string
		unread bool
	}{
		"one":         {events: event(unix.IN_MOVED_TO, "pid.web.eth0.json"), ids: []string{"pid.web.eth0"}},
		"several":     {events: slices.Concat(event(unix.IN_MOVED_TO, "a.json"), event(unix.IN_DELETE, "b.json"), event(unix.IN_MOVED_TO, "a.json")), ids: []string{"a", "b"}},
		"other files": {events: event(unix.IN_DELETE, "a.json.1")},
		"too many":    {events: event(unix.IN_Q_OVERFLOW, ""), unread: true},
		"error":       {err: errors.New("no"), unread: true},
		"cut short":   {events: event(unix.IN_DELETE, "a.json")[:20]},
	} {
		var h events
		h.addFiles(c.events, c.err)
		if got := slices.Sorted(maps.Keys(h.changed)); !slices.Equal(got, c.ids) || h.reload != c.unread {
			t.Errorf("%s: %q, unread %t; want %q, %t", name, got, h.reload, c.ids, c.unread)
		}
	}
}

// An attachment that is detached during its task is dropped when the task ends.
func TestDropWhileWorking(t *testing.T) {
	it := &item{working: true}
	k := &keeper{items: map[string]*item{"web": it}}
	k.drop("web")
	if !it.changed || k.items["web"] != it {
		t.Errorf("changed: %t, still an item: %t", it.changed, k.items["web"] == it)
	}
}

// Each namespace numbers its links from 1, so an event is about the link of one namespace only.
func TestLinksOfOtherNamespaces(t *testing.T) {
	message := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(message, uint32(len(message)))
	binary.NativeEndian.PutUint16(message[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint32(message[unix.SizeofNlMsghdr+4:], 2)
	var e events
	e.addLinks(7, message, nil)
	for _, c := range []struct {
		link linkID
		want bool
	}{{linkID{7, 2}, true}, {linkID{8, 2}, false}, {linkID{ownNSID, 2}, false}, {linkID{7, 3}, false}, {linkID{}, false}} {
		if got := e.concerns(&item{link: c.link, attachment: &attach.Attachment{}}); got != c.want {
			t.Errorf("an event of link 2 in namespace 7 concerns %+v: %t", c.link, got)
		}
	}
}
