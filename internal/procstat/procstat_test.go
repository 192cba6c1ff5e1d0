package procstat

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, text          string
		ok                  bool
		comm, state, parent string
	}{
		{"plain", "7 (sleep) S 1 2", true, "sleep", "S", "1"},
		{"a name like the rest", "7 (a) R 1 (b) S 9\n", true, "a) R 1 (b", "S", "9"},
		{"cut off", "7 (sleep) S", true, "sleep", "S", ""},
		{"only a name", "7 (sleep)", true, "sleep", "", ""},
		{"no name", "7 S 1 2", false, "", "", ""},
		{"parentheses reversed", "7 )x(", false, "", "", ""},
		{"empty", "", false, "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, ok := Parse([]byte(tt.text))
			if ok != tt.ok || s.Name != tt.comm || s.Field(3) != tt.state || s.Field(4) != tt.parent {
				t.Errorf("got %+v, %v", s, ok)
			}
		})
	}
}

// This process was started before now and, in a test, not long ago.
func TestStarted(t *testing.T) {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	stat, _ := Parse(text)
	afterBoot, ok := stat.Started()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	if age := time.Duration(now.Nano()) - afterBoot; !ok || age < 0 || age > time.Hour {
		t.Errorf("started %v after boot, %v ago (%v)", afterBoot, age, ok)
	}
	stat, _ = Parse([]byte("7 (sleep) S 1 2"))
	if _, ok := stat.Started(); ok {
		t.Error("a line that is cut off says when the process was started")
	}
}
