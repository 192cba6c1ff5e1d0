package args

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		line string
		want string // command, operand, file, config, words without the file
		bad  string
	}{
		{line: "setup /run/netns/a", want: "setup /run/netns/a - - setup,/run/netns/a"},
		{line: "--config /c --rootless=false --aardvark-binary=/a setup /n", want: "setup /n - /c --config=/c,--rootless=false,--aardvark-binary=/a,setup,/n"},
		{line: "-f /f -c/c teardown /n", want: "teardown /n /f /c --config=/c,teardown,/n"},
		{line: "setup /n --file=/f --plugin-directory /p --plugin-directory /q", want: "setup /n /f - --plugin-directory=/p,--plugin-directory=/q,setup,/n"},
		{line: "update web --network-dns-servers 192.0.2.1,192.0.2.2", want: "update web - - --network-dns-servers=192.0.2.1,192.0.2.2,update,web"},
		{line: "--version", want: " - - - --version"},
		{line: "dhcp-proxy --dir /d --timeout 8", want: "dhcp-proxy - - - dhcp-proxy"},
		{line: "", bad: "a command is missing"},
		{line: "setup", bad: "setup: an operand is missing"},
		{line: "create now", bad: "unexpected argument 'now' found"},
		{line: "destroy", bad: "unrecognized subcommand 'destroy'"},
		{line: "--quiet=1 version", bad: "unexpected argument '--quiet' found"},
		{line: "version --file", bad: "a value is required for '--file'"},
		{line: "--rootless perhaps version", bad: "invalid value 'perhaps' for '--rootless'"},
	} {
		t.Run(tt.line, func(t *testing.T) {
			l, err := Parse(strings.Fields(tt.line))
			if tt.bad != "" {
				if err == nil || err.Error() != tt.bad || !errors.As(err, new(*UsageError)) {
					t.Fatalf("got %v, want %s", err, tt.bad)
				}
				return
			}
			shown := func(s string) string {
				if s == "" {
					return "-"
				}
				return s
			}
			got := strings.Join([]string{l.Command, shown(l.Operand), shown(l.File), shown(l.Config), strings.Join(l.Words, ",")}, " ")
			if err != nil || got != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
}

// The words without the file mean the same.
func TestWords(t *testing.T) {
	l, err := Parse([]string{"-f", "/dev/fd/63", "--plugin-directory", "/p", "setup", "/n"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(l.Words)
	if err != nil || again.File != "" || again.Operand != "/n" || !slices.Equal(again.Plugins, l.Plugins) {
		t.Errorf("%+v, %v", again, err)
	}
}
