package vm

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// readCpio parses an archive of cpioWriter: one line an entry.
func readCpio(t *testing.T, b []byte) []string {
	t.Helper()
	var out []string
	at := 0
	take := func(n int) []byte {
		if at+n > len(b) {
			t.Fatalf("archive of %d bytes ends before byte %d", len(b), at+n)
		}
		at += n
		return b[at-n : at]
	}
	for {
		if at%4 != 0 {
			t.Fatalf("header at byte %d is not aligned", at)
		}
		h := string(take(110))
		if h[:6] != "070701" {
			t.Fatalf("magic %q at byte %d", h[:6], at-110)
		}
		field := func(i int) int {
			n, err := strconv.ParseUint(h[6+8*i:14+8*i], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		name := strings.TrimSuffix(string(take(field(11))), "\x00")
		take(-at & 3)
		body := string(take(field(6)))
		take(-at & 3)
		if name == "TRAILER!!!" {
			if at != len(b) {
				t.Errorf("%d bytes after the trailer", len(b)-at)
			}
			return out
		}
		out = append(out, fmt.Sprintf("%s %o %q", name, field(1), body))
	}
}

func TestCpio(t *testing.T) {
	var b bytes.Buffer
	c := newCpioWriter(&b)
	for _, f := range []File{
		{Path: "/init", Mode: 0o755, Data: []byte("abcde")},
		{Path: "/usr/lib/x", Data: []byte("1234")},
		{Path: "/usr/lib/empty"},
	} {
		if err := c.add(f); err != nil {
			t.Fatal(err)
		}
	}
	c.link("/usr/y", "lib/x")
	c.dir("/usr")
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`init 100755 "abcde"`,
		`usr 40755 ""`,
		`usr/lib 40755 ""`,
		`usr/lib/x 100644 "1234"`,
		`usr/lib/empty 100644 ""`,
		`usr/y 120777 "lib/x"`,
	}
	if d := cmp.Diff(want, readCpio(t, b.Bytes())); d != "" {
		t.Errorf("archive (-want +got):\n%s", d)
	}
}

func TestCpioShortBody(t *testing.T) {
	c := newCpioWriter(&bytes.Buffer{})
	c.file("/x", 0, 10, strings.NewReader("short"))
	if err := c.close(); err == nil {
		t.Error("a short body is no error")
	}
}
