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

// journalPath returns the path of the journal of an attachment.
func (tb *testbed) journalPath(id string) string {
	tb.t.Helper()
	all, err := filepath.Glob(filepath.Join(tb.state, "run", "*", "live", id))
	must(tb.t, err)
	if len(all) != 1 {
		tb.t.Fatalf("journals of %s: %q", id, all)
	}
	return all[0]
}

// detachNotes detaches eth0 and returns the notes.
func (tb *testbed) detachNotes() (notes []string, err error) {
	err = tb.onHost(func() error {
		_, notes, err = attach.Detach(tb.t.Context(), tb.config(), "web", "eth0")
		return err
	})
	return notes, err
}

// TestDamagedJournal truncates the journal at each line and in the middle of each,
// removes it, and inserts a line that is not JSON. The attachment is listed as broken,
// and detaching removes all that was made.
func TestDamagedJournal(t *testing.T) {
	t.Parallel() // it mostly waits for the kernel
	for _, c := range []struct {
		name  string
		needs []string
		spec  attach.Spec
		prep  func(*testing.T, *testbed, *attach.Spec)
	}{
		{"bridge", []string{"bridge", "ifb", "tbf"}, attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24", "2001:db8::10/64"), Masquerade: true, RateBitsPerSec: 1e8}, nil},
		{"bridge without an address", []string{"bridge"}, attach.Spec{Kind: "bridge", Parent: "br0"}, prepBridge},
		{"macvlan", []string{"macvlan"}, attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.7/24"), HostShim: true}, nil},
		{"wireguard", []string{"wireguard"}, attach.Spec{Kind: "wireguard", Addresses: prefixes("192.0.2.10/24")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			needKinds(t, c.needs...)
			tb := newTestbed(t)
			if c.prep != nil {
				c.prep(t, tb, &c.spec)
			}
			tb.repair()
			before := tb.snapshot()
			for k := 0; ; k++ {
				got, err := tb.attach(c.spec, nil)
				must(t, err)
				path := tb.journalPath(got.Attachment.ID)
				text, err := os.ReadFile(path)
				must(t, err)
				lines := slices.Collect(bytes.Lines(text))
				if k == len(lines)+1 { // remove the journal
					must(t, os.Remove(path))
					notes, err := tb.detachNotes()
					if err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "the journal is missing") {
						t.Errorf("without a journal: detach: notes %q, %v", notes, err)
					}
					tb.unchanged(before, "detached without a journal")
					continue
				}
				if k == len(lines)+2 {
					must(t, tb.detach("eth0", nil))
					break
				}
				cut := slices.Concat(lines[:min(k, len(lines)-1)]...)
				switch {
				case k == len(lines): // insert a line
					cut = slices.Concat(lines[0], []byte("nonsense\n"), slices.Concat(lines[1:]...))
				case k > 0: // truncate in the middle of a line
					cut = append(cut, lines[k][:len(lines[k])/2]...)
				}
				must(t, os.WriteFile(path, cut, 0o600))
				if s := tb.list()[0]; s.State != attach.Broken || len(s.Notes) == 0 || !strings.Contains(s.Notes[len(s.Notes)-1], path) {
					t.Errorf("%d of %d lines remain: %s, notes %q", k, len(lines), s.State, s.Notes)
				}
				notes, err := tb.detachNotes()
				if err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "the journal is damaged") || strings.Contains(notes[0], "may remain") {
					t.Errorf("%d of %d lines remain: detach: notes %q, %v", k, len(lines), notes, err)
				}
				tb.unchanged(before, fmt.Sprintf("detached with %d of %d lines", k, len(lines)))
			}
		})
	}
}

// TestDamagedJournalUnidentifiedLink checks that a link that may belong to somebody else
// is kept, with a note, if the journal is damaged.
func TestDamagedJournalUnidentifiedLink(t *testing.T) {
	needKinds(t, "macvlan")
	for _, spec := range []attach.Spec{{Kind: "macvlan", Parent: "nic"}, {Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}} {
		tb := newTestbed(t)
		got, err := tb.attach(spec, nil)
		must(t, err)
		if len(spec.Addresses) > 0 { // the link is replaced by somebody else's
			must(t, find(t, tb.web, "eth0").Close())
			_, err := link.Create(tb.host, link.MacvlanSpec{Attrs: link.Attrs{Name: "eth0"}, Parent: "nic", Mode: link.MacvlanBridge}, link.Target{NS: tb.web})
			must(t, err)
		}
		must(t, os.Truncate(tb.journalPath(got.Attachment.ID), 0))
		if notes, err := tb.detachNotes(); err != nil || len(notes) != 1 || !strings.HasSuffix(notes[0], "; eth0 may remain in the container, because nothing identifies it") {
			t.Errorf("%v: %q, %v", spec.Addresses, notes, err)
		}
		find(t, tb.web, "eth0")
		if all := tb.list(); len(all) > 0 {
			t.Errorf("%v: still listed: %+v", spec.Addresses, all)
		}
	}
}

// TestMissingJournal checks that an attachment without a journal keeps its address and
// name reserved as long as its link exists, and is listed as broken.
func TestMissingJournal(t *testing.T) {
	needKinds(t, "macvlan")
	for _, lost := range []string{"live/*", ""} {
		tb := newTestbed(t)
		spec := attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}
		got, err := tb.attach(spec, nil)
		must(t, err)
		path := tb.journalPath(got.Attachment.ID)
		gone, err := filepath.Glob(filepath.Join(tb.state, "run", "*", lost))
		must(t, err)
		for _, g := range gone {
			must(t, os.RemoveAll(g))
		}
		if s := tb.list()[0]; s.State != attach.Broken || len(s.Notes) != 1 || !strings.HasPrefix(s.Notes[0], "the journal "+path+" is missing; ") {
			t.Errorf("without %q: %s, notes %q", lost, s.State, s.Notes)
		}
		var taken *attach.TakenError
		if _, err := tb.attach(spec, nil); lost != "" && (!errors.As(err, &taken) || taken.Owner != "eth0 of web") {
			t.Errorf("without %q: its address again: %v", lost, err)
		}
		spec.Name = "eth0"
		if _, err := tb.attach(spec, nil); !errors.As(err, &taken) || taken.Holder == nil {
			t.Errorf("without %q: its name again: %v", lost, err)
		}
		if notes, err := tb.detachNotes(); err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "the journal is missing") {
			t.Errorf("without %q: detach: notes %q, %v", lost, notes, err)
		}
		if _, err := link.Find(tb.web, "eth0"); err == nil {
			t.Errorf("without %q: detached, but the link exists", lost)
		}
	}
}

// TestMissingJournalAfterReboot checks that, after a reboot, a link with the attachment's
// name is not taken for the attachment's.
func TestMissingJournalAfterReboot(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	got, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")}, nil)
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(tb.state, "run")))
	path := filepath.Join(tb.state, "attachments", got.Attachment.ID+".json")
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte(got.Attachment.BootID), []byte("before")), 0o644))
	if s := tb.list()[0]; s.State != attach.Wanted {
		t.Errorf("listed: %s", s.State)
	}
	if notes, err := tb.detachNotes(); err != nil || len(notes) > 0 {
		t.Errorf("detached: %q, %v", notes, err)
	}
	find(t, tb.web, "eth0")
}

// TestDamagedJournalAttachAnother attaches a container with a damaged journal again, by
// another link name.
func TestDamagedJournalAttachAnother(t *testing.T) {
	for _, text := range []string{"", "[\"JSON, but not a record\"]\n"} {
		tb := newTestbed(t)
		spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")}
		got, err := tb.attach(spec, nil)
		must(t, err)
		must(t, os.WriteFile(tb.journalPath(got.Attachment.ID), []byte(text), 0o600))
		if _, err := tb.attach(spec, nil); err == nil || !strings.Contains(err.Error(), "address 192.0.2.10 is in use by eth0 of web") {
			t.Errorf("with %q, the same address: %v", text, err)
		}
		spec.Addresses = prefixes("192.0.2.11/24")
		got, err = tb.attach(spec, nil)
		if err != nil || got.Attachment.Spec.Name != "eth1" {
			t.Errorf("with %q, another address: %+v, %v", text, got, err)
		}
	}
}

// TestUnreadableAttachment checks that the file of an attachment that can't be read is
// named and kept. Other attachments still work, and while its link exists the journal
// has what the file contained.
func TestUnreadableAttachment(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"empty", ""}, {"not JSON", "{\"version\": 1, "}, {"another's", `{"version": 1, "id": "test.db.eth0"}`}, {"newer version", `{"version": 1000}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := newTestbed(t)
			for range 2 {
				_, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0"}, nil)
				must(t, err)
			}
			path := filepath.Join(tb.state, "attachments", "test.web.eth0.json")
			must(t, os.WriteFile(path, []byte(c.text), 0o644))
			must(t, tb.onHost(func() error {
				all, err := attach.List(t.Context(), tb.store)
				if len(all) != 2 || err == nil || !strings.Contains(err.Error(), path) {
					t.Errorf("listed: %d, %v", len(all), err)
				}
				for _, name := range []string{"eth0", "eth1"} {
					s, err := attach.Inspect(t.Context(), tb.config(), "web", name)
					if named := len(s.Notes) == 1 && strings.Contains(s.Notes[0], path); err != nil || s.State != attach.Attached || named != (name == "eth0") {
						t.Errorf("%s: %s, %q, %v", name, s.State, s.Notes, err)
					}
				}
				return nil
			}))
			must(t, find(t, tb.web, "eth0").Close())
			must(t, os.Remove(tb.journalPath("test.web.eth0"))) // as after a reboot
			must(t, tb.onHost(func() error {
				all, err := attach.List(t.Context(), tb.store)
				if len(all) != 1 || err == nil {
					t.Errorf("list without its journal: %d, %v", len(all), err)
				}
				if _, err := attach.Inspect(t.Context(), tb.config(), "web", "eth0"); err == nil || !strings.Contains(err.Error(), path) {
					t.Errorf("inspect without its journal: %v", err)
				}
				s, err := attach.Inspect(t.Context(), tb.config(), "web", "")
				if err != nil || s.Spec.Name != "eth1" || len(s.Notes) != 1 || !strings.Contains(s.Notes[0], path) {
					t.Errorf("the other attachment: notes %q, %v", s.Notes, err)
				}
				return nil
			}))
			if _, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Name: "eth0"}, nil); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("attached under its name: %v", err)
			}
			got, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0"}, nil)
			if err != nil || got.Attachment.Spec.Name != "eth2" {
				t.Errorf("attached beside it: %+v, %v", got, err)
			}
			expectFile(t, "at the end", path, c.text)
		})
	}
}
