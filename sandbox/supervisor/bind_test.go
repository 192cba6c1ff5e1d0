package supervisor

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBinds: of a thread's calls only the last has a place, and what the others held
// is given back; threads have their turns as they came.
func TestBinds(t *testing.T) {
	one := &program{account: &account{budget: newBudget(nil)}}
	one.users.Store(1)
	var w binds
	call := func(tid int) binding {
		fd, err := unix.Dup(int(os.Stdin.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return binding{socket{fd: fd}, one, Binding{TID: tid}}
	}
	if got := w.wait(call(1)); got != first {
		t.Fatalf("the first call: %v, want %v", got, first)
	}
	begun, ok := w.next()
	if !ok || begun.TID != 1 {
		t.Fatalf("next: thread %d, %v", begun.TID, ok)
	}
	old := call(1)
	for tid := 1; tid <= maxBinds; tid++ {
		b := old
		if tid > 1 {
			b = call(tid)
		}
		if got := w.wait(b); got != behind {
			t.Fatalf("thread %d: %v, want %v", tid, got, behind)
		}
	}
	if got := w.wait(call(1)); got != behind {
		t.Errorf("a thread calls again: %v, want %v", got, behind)
	}
	if _, err := unix.FcntlInt(uintptr(old.fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the socket of a call that was left: %v, want %v", err, unix.EBADF)
	}
	if got := w.wait(call(maxBinds + 1)); got != tooMany {
		t.Errorf("one more thread: %v, want %v", got, tooMany)
	}
	if users := one.users.Load(); users != 1+1+maxBinds {
		t.Errorf("%d calls hold their filter, want %d", users-1, 1+maxBinds)
	}
	begun.drop()
	for want := 2; want <= maxBinds+1; want++ {
		b, ok := w.next()
		if last := want > maxBinds; !ok || b.TID != want && !(last && b.TID == 1) {
			t.Errorf("next: thread %d, %v; want thread %d", b.TID, ok, want)
		}
		b.drop()
	}
	if _, ok := w.next(); ok || w.busy || one.users.Load() != 1 {
		t.Errorf("at the end: %v, busy %v, %d users", ok, w.busy, one.users.Load())
	}
	if got := w.wait(call(1)); got != first {
		t.Errorf("later: %v, want %v", got, first)
	}
}
