package yamlfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// word is a kind of text, as callers have.
type word string

type part struct {
	Name  word     `yaml:"name"`
	Ports []uint64 `yaml:"ports"`
}

type whole struct {
	Name  string            `yaml:"name"`
	Count int               `yaml:"count"`
	Size  uint64            `yaml:"size"`
	On    bool              `yaml:"on"`
	Wait  time.Duration     `yaml:"wait"`
	One   *part             `yaml:"one"`
	Parts []part            `yaml:"parts"`
	More  map[string][]word `yaml:"more"`
}

func TestRead(t *testing.T) {
	text := `
name: &n "it's"
count: 0x10
size: 18446744073709551615
on: true
wait: 1m30s
one: {name: *n, ports: &p [1, 2]}
parts:
  - name: a
    ports: *p
  - name: |
      two
      lines
more:
  off: [off, 1, 1.5, true]
  none:
`
	got := whole{}
	doc, problems := Read([]byte(text), &got)
	want := whole{
		Name: "it's", Count: 16, Size: 1<<64 - 1, On: true, Wait: 90 * time.Second,
		One:   &part{Name: "it's", Ports: []uint64{1, 2}},
		Parts: []part{{Name: "a", Ports: []uint64{1, 2}}, {Name: "two\nlines\n"}},
		More:  map[string][]word{"off": {"off", "1", "1.5", "true"}, "none": nil},
	}
	if d := cmp.Diff(want, got); d != "" || problems != nil {
		t.Errorf("problems %v, differs (-want +got):\n%s", problems, d)
	}
	for path, want := range map[string]Place{
		"$.name":              {2, 10},
		"$.one":               {7, 6},
		"$.one.name":          {7, 13}, // where the alias stands
		"$.parts":             {9, 3},
		"$.parts[0]":          {9, 5},
		"$.parts[0].ports":    {10, 12},
		"$.parts[1].ports":    {11, 5}, // not given: the part
		"$.parts[1].ports[3]": {11, 5},
		"$.more.off[2]":       {15, 17},
		"$.more.none":         {15, 3},
		"$.nothing":           {2, 1},
		"":                    {1, 1},
	} {
		if got := doc.Place(path); got != want {
			t.Errorf("Place(%q) = %v, want %v", path, got, want)
		}
	}
	if !doc.Given("$.one.name") || doc.Given("$.more.none") || doc.Given("$.parts[1].ports") || doc.Wrong("$.name") {
		t.Error("given are name and one.name, not more.none nor parts[1].ports; nothing is wrong")
	}
}

func TestReadKeepsWhatIsNotGiven(t *testing.T) {
	got := whole{Name: "before", Count: 7, Parts: []part{{Name: "x"}}}
	if _, problems := Read([]byte("count: many\nparts:\none: x\n"), &got); len(problems) != 2 {
		t.Errorf("problems %v, want two", problems)
	}
	if want := (whole{Name: "before", Count: 7, Parts: []part{{Name: "x"}}}); !cmp.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestProblems(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown keys, all of them", "nam: x\ncuont: 3\n", `1:1 unknown key "nam"; 2:1 unknown key "cuont"`},
		{"within lists", "parts:\n  - nme: x\n  - name: x\n    port: 1\n", `2:5 unknown key "nme"; 4:5 unknown key "port"`},
		{"given twice, read on", "name: x\nname: y\ncount: z\n", `2:1 duplicate key "name": it is already on line 1; 3:8 count: want a whole number`},
		{"given twice in a map", "more: {a: [x], a: [y]}\n", `1:16 duplicate key "a": it is already on line 1`},
		{"kinds", "name: [x]\ncount: 1.5\nsize: -1\non: yes\nwait: 3\none: x\nparts: {}\nmore: 1\n", `1:7 name: want text; 2:8 count: want a whole number; ` +
			`3:7 size: want a whole number, 0 or more; 4:5 on: want true or false; ` +
			`5:7 duration "3": want a number and a unit, e.g. 500ms, 2s, 1m; ` +
			`6:6 one: want keys with values; 7:8 parts: want a list, e.g. [{name: …}]; 8:7 more: want keys with values`},
		{"no lists", "parts: [{ports: 8080}, {ports: {}}, {ports: }]\n", `1:17 ports: want a list, e.g. [8080]; 1:32 ports: want a list, e.g. […, …]`},
		{"a byte order mark alone is no problem", "\xef\xbb\xbfname: x\nconut: 1\n", `2:1 unknown key "conut"`},
		{"a mapping for a text", "name:\n  x: 1\n", `2:3 name: want text`},
		{"too large", "count: 18446744073709551615\nsize: 18446744073709551616\n", `1:8 count: want a whole number; 2:7 size: want a whole number, 0 or more`},
		{"nothing behind a key", "name:\nwait: ~\none: null\nparts:\nmore:\n", `1:6 name: want text; 2:7 wait: want a number and a unit, e.g. 500ms, 2s, 1m; 3:6 one: want keys with values`},
		{"null", "null", `1:1 want keys with values`},
		{"not a mapping", "x", `1:1 want keys with values`},
		{"wrong in a list", "parts: [x, {ports: [1, a, 3]}]\n", `1:9 parts: want keys with values; 1:24 ports: want a whole number, 0 or more`},
		{"an alias of another kind", "name: &n x\ncount: *n\n", `2:8 count: want a whole number`},
		{"an alias of nothing", "name: *n\n", `1:7 alias *n has no anchor &n`},
		{"an alias of itself", "parts: &p\n  - *p\n", `2:5 parts: want keys with values`},
		{"a tag", "name: !!str 5\n", `1:7 tag !!str is not supported`},
		{"a merge key", "one: &o {name: x}\nparts:\n  - <<: *o\n", `3:5 unknown key "<<"`},
		{"no YAML", "name: [\n", `1:7 sequence end token ']' not found`},
		{"nothing", "# nothing\n", `1:1 want one YAML document with the keys name, count, size, on, wait, one, parts, more`},
		{"two documents", "name: x\n---\nname: y\n", `2:1 want one YAML document with the keys name, count, size, on, wait, one, parts, more`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, problems := Read([]byte(tt.text), &whole{})
			var got []string
			for _, p := range problems {
				got = append(got, fmt.Sprintf("%d:%d %s", p.Line, p.Column, p.Text))
				if p.Want != "" && !strings.HasSuffix(p.Text, "want "+p.Want) {
					t.Errorf("%q does not end in what is wanted, %q", p.Text, p.Want)
				}
			}
			if joined := strings.Join(got, "; "); joined != tt.want {
				t.Errorf("got  %s\nwant %s", joined, tt.want)
			}
		})
	}
}

func TestProblemsNameWhatIsKnown(t *testing.T) {
	doc, problems := Read([]byte("one: {nmae: x, ports: x}\n"), &whole{})
	if len(problems) != 2 || problems[0].Word != "nmae" || !slices.Equal(problems[0].Known, []string{"name", "ports"}) {
		t.Errorf("got %+v", problems)
	}
	if !doc.Wrong("$.one.ports") || !doc.Given("$.one.ports") || doc.Wrong("$.one") || doc.Given("$.one.name") {
		t.Error("wrong is one.ports alone, and it is given")
	}
}

func TestAKeyGivenTwiceMakesNoValueWrong(t *testing.T) {
	got := whole{}
	doc, problems := Read([]byte("name: x\none: {name: a, name: b}\nname: y\n"), &got)
	if len(problems) != 2 || doc.Wrong("$") || doc.Wrong("$.name") || doc.Wrong("$.one") || got.Name != "x" || got.One.Name != "a" {
		t.Errorf("got %+v and %v; the first of two counts, and is right", got, problems)
	}
	if at := doc.Place("$.name"); at != (Place{1, 7}) {
		t.Errorf("name is at %v", at)
	}
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{
		"name: &n x\none: {name: *n, ports: [1, 2]}\nparts:\n  - name: a\nmore: {off: [on]}\nwait: 1s\n",
		"? a\n: b\n", "a: &x *x\n", "parts: &p [*p]\n", "- <<: *x\n", "!!map {}\n", "---\n...\n---\n", "a: |2\n   x\n", "\xff: \x00\n", "name: \"\\x\"\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2048 {
			t.Skip() // deep nesting takes long
		}
		doc, problems := Read([]byte(text), &whole{})
		for _, p := range problems {
			if p.Line < 1 || p.Column < 1 || p.Text == "" {
				t.Errorf("%+v", p)
			}
		}
		if at := doc.Place("$.parts[0].name"); at.Line < 1 || at.Column < 1 {
			t.Errorf("place %+v", at)
		}
	})
}

// TestHostile reads files that are made to take long: 64 KiB of them took 0.5 to 53 s.
func TestHostile(t *testing.T) {
	for _, piece := range []string{"[", "{", "- ", "? ", "a: ", "a: 1\n", "&a ", "!a ", "*a ", "[],", "{a: ", "- a\n"} {
		text := []byte(strings.Repeat(piece, 64<<10/len(piece)))
		begun := time.Now()
		var w whole
		_, problems := Read(text, &w)
		if d := time.Since(begun); d > 3*time.Second { // 0.3 s where nobody else runs
			t.Errorf("%q took %v", piece, d)
		}
		if len(problems) == 0 {
			t.Errorf("%q is no problem", piece)
		}
	}
	deep := strings.Repeat("[", maxDepth+1)
	_, problems := Read([]byte("more: {a: 1}\nparts: "+deep), &whole{})
	if len(problems) != 1 || problems[0].Line != 2 || problems[0].Column != 8+maxDepth || problems[0].Text != "brackets are nested too deeply: want at most 32" {
		t.Errorf("brackets: %+v", problems)
	}
	_, problems = Read([]byte("more: {a: ["+strings.Repeat("x, ", maxTokens/2)+"]}"), &whole{})
	if len(problems) != 1 || problems[0].Text != "the file has too many tokens: want at most 8192" {
		t.Errorf("words: %+v", problems)
	}
}
