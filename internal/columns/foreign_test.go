package columns

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

// hostile are names that somebody may have chosen.
var hostile = []string{"web", "", "a b", "it's", "$(reboot)", "`reboot`", ";reboot", "a\nb", "\x1b]0;x\a", "\u009b31m", "\u202etxt.exe", "\u2066x\u2069",
	"\xff\xfe", "\x1b\x07'\\\n7", "~root", "=ls", "*", "!!", "-rf", "é", "\U000e0041", "a\u2028b", "\x00", "#", "a\\"}

func TestPlainLines(t *testing.T) {
	if got := PlainLines("one\ncleat: hint: rm -rf /\x1b[2J\n"); got != "one\n  cleat: hint: rm -rf / [2J" {
		t.Errorf("%q", got)
	}
}

// A word is what it was to a shell, and harmless to look at.
func TestWord(t *testing.T) {
	for s, want := range map[string]string{
		"web": "web", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(reboot)": "'$(reboot)'", "docker:web": "docker:web", "~root": "'~root'",
		"a\nb": `$'a\012b'`, "\x1b'\\": `$'\033\'\\'`, "é": "é", "a\u3164b": "'a\u3164b'", "\u202ex": `$'\342\200\256x'`, "\xff": `$'\377'`,
	} {
		if got := Word(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash to ask")
	}
	for _, s := range hostile {
		if strings.Contains(s, "\x00") { // no word can have it
			continue
		}
		out, err := exec.Command(bash, "-c", "printf %s "+Word(s)).Output()
		if s == "-rf" { // printf's own affair
			out, err = exec.Command(bash, "-c", "printf %s -- "+Word(s)).Output()
			out = bytes.TrimPrefix(out, []byte("--"))
		}
		if err != nil || string(out) != s {
			t.Errorf("%q as %s is %q to bash, %v", s, Word(s), out, err)
		}
	}
}

func TestJSON(t *testing.T) {
	for _, s := range hostile {
		var b bytes.Buffer
		if err := json.NewEncoder(JSON(&b)).Encode(map[string]string{s: s}); err != nil {
			t.Fatal(err)
		}
		var plain, got map[string]string
		want, _ := json.Marshal(map[string]string{s: s})
		if err := json.Unmarshal(want, &plain); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b.Bytes(), &got); err != nil {
			t.Errorf("%q: %v", b.String(), err)
		}
		for k, v := range plain {
			if got[k] != v {
				t.Errorf("%q: %q instead of %q", s, got, plain)
			}
		}
		if i := strings.IndexFunc(strings.TrimSuffix(b.String(), "\n"), hidden); i >= 0 {
			t.Errorf("%q has what is hidden", b.String())
		}
	}
}

func FuzzForeign(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, got := range map[string]string{"Plain": Plain(s), "Word": Word(s), "PlainLines": strings.ReplaceAll(PlainLines(s), "\n", "")} {
			if !utf8.ValidString(got) || strings.IndexFunc(got, hidden) >= 0 {
				t.Errorf("%s makes %q of %q", name, got, s)
			}
		}
		if text, err := json.Marshal(s); err == nil {
			var b bytes.Buffer
			var back, want string
			JSON(&b).Write(text)
			json.Unmarshal(text, &want)
			if err := json.Unmarshal(b.Bytes(), &back); err != nil || back != want {
				t.Errorf("%q is %q, %v", s, back, err)
			}
		}
	})
}
