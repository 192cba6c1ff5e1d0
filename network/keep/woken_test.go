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

// The end of a container's first process is noted, and concerns that container alone.
func TestFollow(t *testing.T) {
	process := exec.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	w := newWoken()
	web := &item{a: &attach.Attachment{Container: attach.Container{PID: process.Process.Pid}}}
	db := &item{a: &attach.Attachment{}}
	for _, it := range []*item{web, db} {
		it.follow(w)
		defer it.first.close()
	}
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	process.Wait()
	select {
	case <-w.wake:
	case <-time.After(5 * time.Second):
		t.Fatal("nobody wakes")
	}
	if h := w.take(); !h.concerns(web) || h.concerns(db) {
		t.Errorf("it concerns web: %t, db: %t", h.concerns(web), h.concerns(db))
	}
}

// event is what inotify says of a file; the kernel pads names with zero bytes.
func event(mask uint32, name string) []byte {
	b := make([]byte, unix.SizeofInotifyEvent+(len(name)+16)&^15)
	binary.NativeEndian.PutUint32(b[4:], mask)
	binary.NativeEndian.PutUint32(b[12:], uint32(len(b)-unix.SizeofInotifyEvent))
	copy(b[unix.SizeofInotifyEvent:], name)
	return b
}

// What changed is looked at alone, unless it is not known what did.
func TestChanged(t *testing.T) {
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
		"an error":    {err: errors.New("no"), unread: true},
		"torn":        {events: event(unix.IN_DELETE, "a.json")[:20]},
	} {
		var h happenings
		h.changed(c.events, c.err)
		if got := slices.Sorted(maps.Keys(h.wanted)); !slices.Equal(got, c.ids) || h.unread != c.unread {
			t.Errorf("%s: %q, unread %t; want %q, %t", name, got, h.unread, c.ids, c.unread)
		}
	}
}

// Who works at what is not wanted any more looks again afterwards.
func TestUnwantedMeanwhile(t *testing.T) {
	it := &item{working: true}
	k := &keeper{items: map[string]*item{"web": it}}
	k.unwanted("web")
	if !it.again || k.items["web"] != it {
		t.Errorf("looked at again: %t, known: %t", it.again, k.items["web"] == it)
	}
}
