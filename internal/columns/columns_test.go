package columns

import "testing"

func TestWidth(t *testing.T) {
	for _, c := range []struct {
		s    string
		want int
	}{{"abc", 3}, {"µs – ~", 6}, {"容器", 4}, {"e\u0301", 1}, {"", 0}} {
		if got := Of(c.s); got != c.want {
			t.Errorf("Of(%q) = %d, want %d", c.s, got, c.want)
		}
	}
	if got := Clip("容器网络", 5); got != "容器…" {
		t.Errorf("Clip: %q", got)
	}
	if got := Wrap("a bb ccc dddd", 4, 6); len(got) != 3 || got[0] != "a bb" || got[1] != "ccc" || got[2] != "dddd" {
		t.Errorf("Wrap: %q", got)
	}
}

func TestParagraph(t *testing.T) {
	for _, c := range []struct{ head, indent, text, want string }{
		{"* ", "  ", "a bb ccc dddd", "* a bb\n  ccc\n  dddd\n"},
		{"", "  ", "", "\n"},
		{"x: ", "", "a-long-word b", "x: a-long-word\nb\n"},
	} {
		if got := Paragraph(c.head, c.indent, c.text, 7); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

func TestRow(t *testing.T) {
	rows := [][]string{{"name", "n", ""}, {"容器", "10", "x\ny"}}
	var got string
	for _, row := range rows {
		got += Row(row, Widths(rows), 1)
	}
	if want := "name   n\n容器  10  x y\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzWrap(f *testing.F) {
	f.Add("some words to be wrapped", 10, 7)
	f.Add("容器网络 e\u0301\u0301 x", 3, 2)
	f.Fuzz(func(t *testing.T, text string, first, n int) {
		if first < 2 || n < 2 || n > 1000 || first > 1000 {
			t.Skip()
		}
		for i, l := range Wrap(Plain(text), first, n) {
			room := n
			if i == 0 {
				room = first
			}
			if Of(l) > room {
				t.Fatalf("line %d of %q takes %d columns of %d: %q", i, text, Of(l), room, l)
			}
		}
	})
}
