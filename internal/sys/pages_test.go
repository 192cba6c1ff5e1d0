package sys

import (
	"os"
	"slices"
	"testing"
)

func TestProgramPages(t *testing.T) {
	const maps = `00400000-00cf2000 r-xp 00000000 fd:00 1 /usr/bin/cleat
00cf2000-01600000 r--p 008f2000 fd:00 1 /usr/bin/cleat
01600000-0163a000 rw-p 01200000 fd:00 1 /usr/bin/cleat
0163a000-0167d000 rw-p 00000000 00:00 0 
7ffd1000-7ffd2000 r-xp 00000000 00:00 0 [vdso]
7ffe0000-7ffe1000 r--p 00000000 fd:00 2 /other/usr/bin/cleat
nonsense
`
	want := ProgramPages{{0x400000, 0xcf2000}, {0xcf2000, 0x1600000}}
	if got := programPages([]byte(maps), "/usr/bin/cleat"); !slices.Equal(got, want) {
		t.Errorf("pages %x, want %x", got, want)
	}
}

// Released pages come back when they are needed: the test continues to run.
func TestReleaseProgramPages(t *testing.T) {
	pages, err := FindProgramPages()
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) == 0 {
		maps, _ := os.ReadFile("/proc/self/maps")
		t.Fatalf("no page of the program is found in\n%s", maps)
	}
	if err := pages.Release(); err != nil {
		t.Error(err)
	}
}
