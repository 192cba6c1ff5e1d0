package vm

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func TestCheckExit(t *testing.T) {
	tests := []struct {
		name   string
		output string
		code   int
		rest   string
		status int
		died   bool
	}{
		{"success", "ok\n\n" + statusLine + "0\n", 1, "ok\n", 0, false},
		{"failure", "no\n\n" + statusLine + "3\n", 7, "no\n", 3, false},
		{"nothing printed", "\n" + statusLine + "0\n", 1, "", 0, false},
		{"no end of line", "half\n" + statusLine + "0\n", 1, "half", 0, false},
		{"cut short", "ok\n\n" + statusLine, 1, "", 0, true},
		{"power-off", "ok\n\n" + statusLine + "0\n", 0, "", 0, true},
		{"panic before the line", "ok\n", 0, "", 0, true},
		{"exit port without the line", "ok\n", 1, "", 0, true},
		{"they disagree", "\n" + statusLine + "1\n", 1, "", 0, true},
		{"not the last line", "\n" + statusLine + "0\nmore\n", 1, "", 0, true},
		{"no number", "\n" + statusLine + "x\n", 1, "", 0, true},
		{"empty", "", 1, "", 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rest, status, err := checkExit([]byte(tt.output), tt.code)
			if tt.died {
				if !errors.Is(err, ErrGuestDied) {
					t.Errorf("got status %d and %v, want %v", status, err, ErrGuestDied)
				}
				return
			}
			if err != nil || status != tt.status || string(rest) != tt.rest {
				t.Errorf("got %q, %d, %v; want %q, %d", rest, status, err, tt.rest, tt.status)
			}
		})
	}
}

func TestInitScriptIsShell(t *testing.T) {
	script, err := initScript(Config{
		Load:    []string{"tun", "absent"},
		Env:     []string{"A=it's $HOME"},
		Command: []string{"/x", "-run", "a|b $(c)", ""},
	}, []string{"tun"})
	if err != nil {
		t.Fatal(err)
	}
	text := string(script)
	for _, want := range []string{
		"modprobe 'tun'", `export 'A=it'\''s $HOME'`, "\n'/x' '-run' 'a|b $(c)' '' \n", statusLine,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("script lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "absent") {
		t.Error("the script loads a module that the guest lacks")
	}
	cmd := exec.Command("sh", "-n")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("sh rejects the script: %v: %s", err, out)
	}
}

func TestAsUnavailable(t *testing.T) {
	for text, want := range map[string]bool{
		"E: Failed to fetch x  Temporary failure resolving 'y'":       true,
		"E: Failed to fetch x  Could not connect to 192.0.2.1:80":     true,
		"E: The repository is not signed. NO_PUBKEY 0000000000000000": false,
		"E: Failed to fetch x  Hash Sum mismatch":                     false,
	} {
		if got := errors.Is(asUnavailable(errors.New(text)), ErrUnavailable); got != want {
			t.Errorf("%q: unavailable %t, want %t", text, got, want)
		}
	}
}
