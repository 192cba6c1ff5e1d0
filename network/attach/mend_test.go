package attach_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/attach"
)

// live is the journal of what was made of an attachment.
func (w *world) live(id string) string {
	w.t.Helper()
	all, err := filepath.Glob(filepath.Join(w.state, "run", "*", "live", id))
	must(w.t, err)
	if len(all) != 1 {
		w.t.Fatalf("journals of %s: %q", id, all)
	}
	return all[0]
}

// detachNotes detaches eth0, and returns what is said.
func (w *world) detachNotes() (notes []string, err error) {
	err = w.do(func() error {
		_, notes, err = attach.Detach(w.t.Context(), w.config(), "web", "eth0")
		return err
	})
	return notes, err
}

// A journal that somebody cut, wherever, emptied, or wrote into is said to be damaged, and
// detaching removes all that was made.
func TestDamagedJournal(t *testing.T) {
	t.Parallel() // it waits for the kernel most of the time
	for _, c := range []struct {
		name  string
		needs []string
		want  attach.Spec
		prep  func(*testing.T, *world, *attach.Spec)
	}{
		{"bridge", []string{"bridge", "ifb", "tbf"}, attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24", "2001:db8::10/64"), Masquerade: true, RateBitsPerSec: 1e8}, nil},
		{"bridge without address", []string{"bridge"}, attach.Spec{Kind: "bridge", Parent: "br0"}, haveBridge},
		{"macvlan", []string{"macvlan"}, attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.7/24"), HostShim: true}, nil},
		{"wireguard", []string{"wireguard"}, attach.Spec{Kind: "wireguard", Addresses: prefixes("192.0.2.10/24")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			need(t, c.needs...)
			w := newWorld(t)
			if c.prep != nil {
				c.prep(t, w, &c.want)
			}
			w.repair()
			before := w.snapshot()
			for k := 0; ; k++ {
				got, err := w.attach(c.want, nil)
				must(t, err)
				path := w.live(got.Attachment.ID)
				text, err := os.ReadFile(path)
				must(t, err)
				lines := slices.Collect(bytes.Lines(text))
				if k == len(lines)+1 { // gone
					must(t, os.Remove(path))
					notes, err := w.detachNotes()
					if err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "the journal is missing") {
						t.Errorf("without a journal, detached: %q, %v", notes, err)
					}
					w.unchanged(before, "detached without a journal")
					continue
				}
				if k == len(lines)+2 {
					must(t, w.detach("eth0", nil))
					break
				}
				cut := slices.Concat(lines[:min(k, len(lines)-1)]...)
				switch {
				case k == len(lines): // written into
					cut = slices.Concat(lines[0], []byte("nonsense\n"), slices.Concat(lines[1:]...))
				case k > 0: // in the middle of a line
					cut = append(cut, lines[k][:len(lines[k])/2]...)
				}
				must(t, os.WriteFile(path, cut, 0o600))
				if s := w.list()[0]; s.State != attach.Broken || len(s.Notes) == 0 || !strings.Contains(s.Notes[len(s.Notes)-1], path) {
					t.Errorf("%d of %d lines are left: %s, notes %q", k, len(lines), s.State, s.Notes)
				}
				notes, err := w.detachNotes()
				if err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "the journal is damaged") || strings.Contains(notes[0], "may remain") {
					t.Errorf("%d of %d lines are left, detached: %q, %v", k, len(lines), notes, err)
				}
				w.unchanged(before, fmt.Sprintf("detached with %d of %d lines", k, len(lines)))
			}
		})
	}
}

// Without a journal a link that may be another's stays, which is said.
func TestDamagedJournalDoubt(t *testing.T) {
	need(t, "macvlan")
	for _, want := range []attach.Spec{{Kind: "macvlan", Parent: "nic"}, {Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}} {
		w := newWorld(t)
		got, err := w.attach(want, nil)
		must(t, err)
		if len(want.Addresses) > 0 { // and it is another's
			must(t, find(t, w.web, "eth0").Close())
			_, err := link.Create(w.host, link.MacvlanSpec{Attrs: link.Attrs{Name: "eth0"}, Parent: "nic", Mode: link.MacvlanBridge}, link.Target{NS: w.web})
			must(t, err)
		}
		must(t, os.Truncate(w.live(got.Attachment.ID), 0))
		if notes, err := w.detachNotes(); err != nil || len(notes) != 1 || !strings.HasSuffix(notes[0], "; eth0 may remain in the container, because nothing identifies it") {
			t.Errorf("%v: %q, %v", want.Addresses, notes, err)
		}
		find(t, w.web, "eth0")
		if all := w.list(); len(all) > 0 {
			t.Errorf("%v: listed still: %+v", want.Addresses, all)
		}
	}
}

// Without a journal an attachment keeps its address as long as its link is there, and is
// listed as what it is.
func TestNoJournal(t *testing.T) {
	need(t, "macvlan")
	for _, lost := range []string{"live/*", ""} {
		w := newWorld(t)
		want := attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}
		got, err := w.attach(want, nil)
		must(t, err)
		path := w.live(got.Attachment.ID)
		gone, err := filepath.Glob(filepath.Join(w.state, "run", "*", lost))
		must(t, err)
		for _, g := range gone {
			must(t, os.RemoveAll(g))
		}
		if s := w.list()[0]; s.State != attach.Broken || len(s.Notes) != 1 || !strings.HasPrefix(s.Notes[0], "the journal "+path+" is missing; ") {
			t.Errorf("without %q: %s, notes %q", lost, s.State, s.Notes)
		}
		var taken *attach.TakenError
		if _, err := w.attach(want, nil); lost != "" && (!errors.As(err, &taken) || taken.Owner != "eth0 of web") {
			t.Errorf("without %q, its address once more: %v", lost, err)
		}
		want.Name = "eth0"
		if _, err := w.attach(want, nil); !errors.As(err, &taken) || taken.Holder == nil {
			t.Errorf("without %q, its name once more: %v", lost, err)
		}
		if notes, err := w.detachNotes(); err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "the journal is missing") {
			t.Errorf("without %q, detached: %q, %v", lost, notes, err)
		}
		if _, err := link.Find(w.web, "eth0"); err == nil {
			t.Errorf("without %q, detached: the link is there", lost)
		}
	}
}

// When the machine began anew a link of its name is another's.
func TestNoJournalNoLink(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	got, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}, nil)
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(w.state, "run")))
	path := filepath.Join(w.state, "attachments", got.Attachment.ID+".json")
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte(got.Attachment.BootID), []byte("before")), 0o644))
	if s := w.list()[0]; s.State != attach.Wanted {
		t.Errorf("listed: %s", s.State)
	}
	if notes, err := w.detachNotes(); err != nil || len(notes) > 0 {
		t.Errorf("detached: %q, %v", notes, err)
	}
	find(t, w.web, "eth0")
}

// A container with a damaged journal can be attached once more, by another name.
func TestDamagedJournalTaken(t *testing.T) {
	w := newWorld(t)
	want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}
	got, err := w.attach(want, nil)
	must(t, err)
	must(t, os.Truncate(w.live(got.Attachment.ID), 0))
	if _, err := w.attach(want, nil); err == nil || !strings.Contains(err.Error(), "address 192.0.2.10 is in use by eth0 of web") {
		t.Errorf("its address once more: %v", err)
	}
	want.Addresses = prefixes("192.0.2.11/24")
	got, err = w.attach(want, nil)
	if err != nil || got.Attachment.Spec.Name != "eth1" {
		t.Errorf("another link: %+v, %v", got, err)
	}
}

// A file of what is wanted that can't be read is named, and stays; others go on, and it is
// known what it was as long as its link is there.
func TestUnreadable(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"empty", ""}, {"no JSON", "{\"version\": 1, "}, {"another's", `{"version": 1, "id": "test.db.eth0"}`}, {"of a later cleat", `{"version": 1000}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			for range 2 {
				_, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0"}, nil)
				must(t, err)
			}
			path := filepath.Join(w.state, "attachments", "test.web.eth0.json")
			must(t, os.WriteFile(path, []byte(c.text), 0o644))
			must(t, w.do(func() error {
				all, err := attach.List(t.Context(), w.store)
				if len(all) != 2 || err == nil || !strings.Contains(err.Error(), path) {
					t.Errorf("listed: %d, %v", len(all), err)
				}
				for _, name := range []string{"eth0", "eth1"} {
					s, err := attach.Inspect(t.Context(), w.config(), "web", name)
					if named := len(s.Notes) == 1 && strings.Contains(s.Notes[0], path); err != nil || s.State != attach.Attached || named != (name == "eth0") {
						t.Errorf("%s: %s, %q, %v", name, s.State, s.Notes, err)
					}
				}
				return nil
			}))
			must(t, find(t, w.web, "eth0").Close())
			must(t, os.Remove(w.live("test.web.eth0"))) // as after a restart
			must(t, w.do(func() error {
				all, err := attach.List(t.Context(), w.store)
				if len(all) != 1 || err == nil {
					t.Errorf("listed without its journal: %d, %v", len(all), err)
				}
				if _, err := attach.Inspect(t.Context(), w.config(), "web", "eth0"); err == nil || !strings.Contains(err.Error(), path) {
					t.Errorf("inspected without its journal: %v", err)
				}
				s, err := attach.Inspect(t.Context(), w.config(), "web", "")
				if err != nil || s.Spec.Name != "eth1" || len(s.Notes) != 1 || !strings.Contains(s.Notes[0], path) {
					t.Errorf("the other: %q, %v", s.Notes, err)
				}
				return nil
			}))
			if _, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Name: "eth0"}, nil); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("attached in its place: %v", err)
			}
			got, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0"}, nil)
			if err != nil || got.Attachment.Spec.Name != "eth2" {
				t.Errorf("attached beside it: %+v, %v", got, err)
			}
			fileIs(t, "at last", path, c.text)
		})
	}
}
