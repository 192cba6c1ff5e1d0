package keep

import (
	"os/exec"
	"testing"
	"time"

	"cleat/network/attach"
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
