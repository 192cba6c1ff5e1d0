package keep

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"cleat/network/attach"
)

// A log never has more than two files of some bytes.
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
	for i := range 3 * logMax / len(line) {
		l.Printf("%d %s", i, line)
	}
	l.Printf("the last")
	for _, path := range []string{LogFile(store), LogFile(store) + ".1"} {
		text, err := os.ReadFile(path)
		if err != nil || len(text) > logMax+2*len(line) {
			t.Errorf("%s has %d bytes, %v", path, len(text), err)
		}
		if last := bytes.HasSuffix(text, []byte("Z the last\n")); last != (path == LogFile(store)) {
			t.Errorf("%s has the last line: %t", path, last)
		}
	}
}

// What fails is tried at longer and longer intervals, and said less and less.
func TestPauses(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want time.Duration
	}{
		{"after one failure", backoff(1), time.Second},
		{"after three", backoff(3), 4 * time.Second},
		{"after many", backoff(1000), failSeldom},
		{"a container, after an event", untilLook(0, true), lookSoon},
		{"then", untilLook(20, true), lookNear},
		{"after a second", untilLook(28, true), 8 * lookNear},
		{"of an engine that says something", untilLook(50, true), lookSeldom},
		{"of one that does not", untilLook(50, false), lookEvery},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.name, c.got, c.want)
		}
	}
	said := 0
	for n := 1; n <= 1024; n++ {
		if worthSaying(n) {
			said++
		}
	}
	if said != 11 {
		t.Errorf("of 1024 failures %d are said", said)
	}
}

// A link that somebody removed is made again at once for the first time only.
func TestRemovals(t *testing.T) {
	now := time.Now()
	it := &item{}
	for i, want := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second} {
		it.countRemoved(outcome{remade: true}, now)
		if got := it.work(now).after; got != want {
			t.Errorf("after %d: %s, want %s", i+1, got, want)
		}
	}
	now = now.Add(calm + time.Second)
	if it.countRemoved(outcome{remade: true}, now); it.work(now).after != 0 {
		t.Error("it does not calm down")
	}
}
