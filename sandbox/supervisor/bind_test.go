package supervisor

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The queue keeps only the last call of a thread and frees the earlier ones. Threads get
// their turns in order of arrival.
func TestBindQueue(t *testing.T) {
	p := &program{account: &account{budget: newBudget(nil)}}
	p.users.Store(1)
	var q bindQueue
	call := func(tid int) queuedBind {
		fd, err := unix.Dup(int(os.Stdin.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return queuedBind{socket{fd: fd}, p, BindCall{TID: tid}}
	}
	if idle, ok := q.add(call(1)); !idle || !ok {
		t.Fatalf("add the first call: idle %v, ok %v, want true, true", idle, ok)
	}
	begun, ok := q.next()
	if !ok || begun.TID != 1 {
		t.Fatalf("next: thread %d, %v", begun.TID, ok)
	}
	old := call(1)
	for tid := 1; tid <= maxBinds; tid++ {
		b := old
		if tid > 1 {
			b = call(tid)
		}
		if idle, ok := q.add(b); idle || !ok {
			t.Fatalf("add a call of thread %d: idle %v, ok %v, want false, true", tid, idle, ok)
		}
	}
	if idle, ok := q.add(call(1)); idle || !ok {
		t.Errorf("add another call of a thread: idle %v, ok %v, want false, true", idle, ok)
	}
	if _, err := unix.FcntlInt(uintptr(old.fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("socket of an interrupted call: %v, want %v", err, unix.EBADF)
	}
	if _, ok := q.add(call(maxBinds + 1)); ok {
		t.Error("add succeeds on a full queue")
	}
	if users := p.users.Load(); users != 1+1+maxBinds {
		t.Errorf("%d calls use the notifications, want %d", users-1, 1+maxBinds)
	}
	begun.drop()
	for want := 2; want <= maxBinds+1; want++ {
		b, ok := q.next()
		if last := want > maxBinds; !ok || b.TID != want && !(last && b.TID == 1) {
			t.Errorf("next: thread %d, %v, want thread %d", b.TID, ok, want)
		}
		b.drop()
	}
	if _, ok := q.next(); ok || q.busy || p.users.Load() != 1 {
		t.Errorf("at the end: next %v, busy %v, %d users, want false, false, 1", ok, q.busy, p.users.Load())
	}
	if idle, ok := q.add(call(1)); !idle || !ok {
		t.Errorf("add a call to the empty queue: idle %v, ok %v, want true, true", idle, ok)
	}
}
