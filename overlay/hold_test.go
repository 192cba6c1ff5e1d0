package overlay

import (
	"testing"
	"time"

	"cleat/internal/statedir"
)

func newHoldNode(t *testing.T) *Node {
	n := &Node{cfg: Config{Boot: "2", Log: t.Logf}, dir: dir(t.TempDir()), mirror: newMirror()}
	for _, c := range []*chan struct{}{&n.apply, &n.claim, &n.publish} {
		*c = make(chan struct{}, 1)
	}
	return n
}

// TestSaveContact checks when the file of the last contact is written.
func TestSaveContact(t *testing.T) {
	for _, row := range []struct {
		name  string
		saves contact
		last  contact
		after time.Duration
		want  time.Duration // of the file
	}{
		{"first", contact{}, contact{Boot: "1", Uptime: time.Hour}, time.Hour, time.Hour},
		{"soon", contact{Boot: "1", Uptime: time.Hour}, contact{Boot: "1", Uptime: time.Hour + time.Second}, time.Hour, 0},
		{"later", contact{Boot: "1", Uptime: time.Hour}, contact{Boot: "1", Uptime: time.Hour + time.Minute}, time.Hour, time.Hour + time.Minute},
		{"after a reboot", contact{Boot: "1", Uptime: time.Hour}, contact{Boot: "2", Uptime: time.Second}, time.Hour, time.Second},
		{"soon, and hosts are never forgotten", contact{Boot: "1", Uptime: time.Hour}, contact{Boot: "1", Uptime: time.Hour + time.Second}, 0, 0},
	} {
		n := newHoldNode(t)
		n.saves = row.saves
		must(t, n.saveContact(row.last, row.after))
		got, err := statedir.ReadJSON[contact](n.dir.path(contactFile))
		must(t, err)
		switch {
		case row.want == 0 && got != nil:
			t.Errorf("%s: the file has %v, want none", row.name, *got)
		case row.want != 0 && (got == nil || got.Uptime != row.want):
			t.Errorf("%s: the file has %v, want %v", row.name, got, row.want)
		}
	}
}

// TestHeldAfterSleep checks that a host which was cut off for long, and did not run meanwhile, gives out no addresses
// when the registry answers before the host has looked.
func TestHeldAfterSleep(t *testing.T) {
	n := newHoldNode(t)
	n.contact = now(n.cfg.Boot)
	if n.setAnswers(true); n.held {
		t.Error("held, though the registry has just answered")
	}
	n.contact.Uptime -= DefaultForgetAfter
	if n.setAnswers(true); !n.held {
		t.Error("not held after a long sleep")
	}
}
