package keep

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"cleat/network/attach"
)

// A log has at most two files of bounded size.
func TestLog(t *testing.T) {
	store, err := attach.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l, err := OpenLog(store)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	line := strings.Repeat("x", 1000)
	for i := range 3 * maxLogBytes / len(line) {
		l.Printf("%d %s", i, line)
	}
	l.Printf("the last")
	for _, path := range []string{LogFile(store), LogFile(store) + ".1"} {
		text, err := os.ReadFile(path)
		if err != nil || len(text) > maxLogBytes+2*len(line) {
			t.Errorf("%s has %d bytes, %v", path, len(text), err)
		}
		if last := bytes.HasSuffix(text, []byte("Z the last\n")); last != (path == LogFile(store)) {
			t.Errorf("%s has the last line: %t", path, last)
		}
	}
}

// Failures are retried at growing intervals, and logged less and less often.
func TestPauses(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want time.Duration
	}{
		{"after one failure", backoff(1), time.Second},
		{"after three", backoff(3), 4 * time.Second},
		{"after many", backoff(1000), maxRetry},
		{"a container after an event", nextLook(0, true), lookSoon},
		{"then", nextLook(20, true), lookNear},
		{"after a second", nextLook(28, true), 8 * lookNear},
		{"of an engine that reports starts", nextLook(50, true), lookSeldom},
		{"of an engine that does not", nextLook(50, false), lookEvery},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.name, c.got, c.want)
		}
	}
	logged := 0
	for n := 1; n <= 1024; n++ {
		if worthLogging(n) {
			logged++
		}
	}
	if logged != 11 {
		t.Errorf("%d of 1024 failures are logged, want 11", logged)
	}
}

// Only the first removal of a link is repaired at once.
func TestRemovals(t *testing.T) {
	now := time.Now()
	it := &item{}
	for i, want := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second} {
		it.countRemoval(outcome{remade: true}, now)
		if got := it.task(now).holdOff; got != want {
			t.Errorf("after %d: %s, want %s", i+1, got, want)
		}
	}
	now = now.Add(removalMemory + time.Second)
	if it.countRemoval(outcome{remade: true}, now); it.task(now).holdOff != 0 {
		t.Error("earlier removals still count after removalMemory")
	}
}
