package dnsname

import (
	"strings"
	"testing"
)

func TestFold(t *testing.T) {
	for in, want := range map[string]string{
		"":                  "",
		".":                 "",
		"example.com":       "example.com",
		"WWW.Example.COM.":  "www.example.com",
		"example.com..":     "example.com.",
		"ban\u212a.example": "ban\u212a.example",
		"\xc5.example":      "\xc5.example",
		"@[`{Z":             "@[`{z",
	} {
		if got := Fold(in); got != want {
			t.Errorf("Fold(%q) is %q, want %q", in, got, want)
		}
	}
}

func FuzzNames(f *testing.F) {
	f.Add("Example.COM.", "example.com")
	f.Add("ban\u212a.example", "bank.example")
	f.Add("\x00\n\x1b[31m", `\000`)
	f.Fuzz(func(t *testing.T, a, b string) {
		textA, textB := Of(a), Of(b)
		for _, c := range []byte(textA) {
			if c <= ' ' || c >= 0x7f || 'A' <= c && c <= 'Z' {
				t.Fatalf("Of(%q) is %q", a, textA)
			}
		}
		if Fold(a) == Fold(b) != (textA == textB) {
			t.Fatalf("Of(%q) is %q, Of(%q) is %q", a, textA, b, textB)
		}
		if same := asciiLower(a) == asciiLower(b); Equal(a, b) != same {
			t.Fatalf("Equal(%q, %q) is %v", a, b, !same)
		}
		if Lower(a) != asciiLower(a) {
			t.Fatalf("Lower(%q) is %q", a, Lower(a))
		}
	})
}

// asciiLower is Lower, one letter after the other.
func asciiLower(s string) string {
	for i, upper := range "ABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		s = strings.ReplaceAll(s, string(upper), "abcdefghijklmnopqrstuvwxyz"[i:i+1])
	}
	return s
}
