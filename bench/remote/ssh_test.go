package remote_test

import (
	"testing"
)

func TestExistingPath(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	r := s.start(s.between("root", "--out", "run")...)
	code := r.code()
	t.Logf("%d\n%s\n%s", code, r.out.String(), r.err.String())
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	s.nothingLeft(before)
}

func TestOverlays(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	r := s.start(s.overlays("--out", "run", "--device", "eth0,eth0", "--work", "tcp,udp,rr")...)
	code := r.code()
	t.Logf("%d\n%s\n%s", code, r.out.String(), r.err.String())
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	s.nothingLeft(before)
}
