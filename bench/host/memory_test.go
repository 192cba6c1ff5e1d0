package host

import (
	"io"
	"os"
	"os/exec"
	"testing"
)

func TestParseRollup(t *testing.T) {
	const text = "00400000-7ffd4e7d6000 ---p 00000000 00:00 0    [rollup]\nRss:                1824 kB\nPss:                 100 kB\nAnonymous:            24 kB\n"
	for _, c := range []struct {
		name, text string
		want       ProcMemory
		fails      bool
	}{
		{"plain", text, ProcMemory{1824 << 10, 24 << 10, 100 << 10}, false},
		{"a process that is ending", "", ProcMemory{}, true},
		{"another format", "Rss: 3 kB\n", ProcMemory{}, true},
	} {
		if got, err := parseRollup(c.text); got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %d, %v", c.name, got, err)
		}
	}
}

func TestTreeMemoryCountsChildren(t *testing.T) {
	own, err := TreeMemory(os.Getpid())
	if err != nil {
		t.Skip("the kernel does not report memory: ", err)
	}
	cmd := exec.Command("cat") // waits for its input
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip("no program to start: ", err)
	}
	// Its answer shows that it has started.
	if _, err := io.WriteString(in, "x"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	child, err := TreeMemory(cmd.Process.Pid)
	if err != nil {
		t.Error(err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if child.Anonymous <= 0 || child.Resident <= child.Anonymous || child.Resident >= own.Resident {
		t.Errorf("this process holds %+v, and a small child %+v: want less", own, child)
	}
	if _, err := TreeMemory(cmd.Process.Pid); err == nil {
		t.Error("a process that has ended has memory")
	}
}
