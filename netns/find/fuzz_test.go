package find

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FuzzProc parses what processes can write into files of /proc.
func FuzzProc(f *testing.F) {
	f.Add("7 (a) S 1 (b) S 3 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 700 0 0\n", "Uid:\t1500\t1500\nNSpid:\t7 1\nCapEff:\t00000000a80425fb\n", "0::/docker/abc\n9:x:/lxc.payload.web\n")
	f.Add("7 ()) ", "Uid:\nNSpid:\nCapEff:\tzz\n", "lxc\n/lxc/\n")
	f.Add("conmon\x00-c\x00abc\x00-b", "[lxc monitor] /var/lib/lxc web", "Apptainer instance: alice [sim]")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if s, err := parseStat([]byte(a)); err == nil && s.state == 0 {
			t.Errorf("%q has no state", a)
		}
		if s := parseStatus(b); s.nested() != (len(s.nspid) > 1) || s.first() && !s.nested() {
			t.Errorf("%q: %+v", b, s)
		}
		for _, text := range []string{a, b, c} {
			args := parseCommandLine(text)
			x := monitor{args: args}
			_ = x.option("-c") + x.option("-b")
			instanceName(args[0])
			if name := lxcGroup(text); strings.ContainsRune(name, '/') {
				t.Errorf("%q: name %q", text, name)
			}
			inGroup(text, b)
			parsePasswd(text)
			r := parse(text)
			for _, foreign := range []bool{false, true} {
				k := candidate{Found: Found{Engine: Docker, Name: "web", ID: "abcdef", Space: "alice"}, foreign: foreign}
				if fit := k.match(r); foreign && fit != noMatch && !strings.HasPrefix(r.name, "alice/") {
					t.Errorf("%q is another user's container", text)
				}
			}
		}
	})
}

// answers gives the same answer to every request.
type answers struct {
	code int
	body string
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.code, Body: io.NopCloser(strings.NewReader(a.body)), Header: http.Header{}}, nil
}

// FuzzEngine parses arbitrary answers of an engine.
func FuzzEngine(f *testing.F) {
	f.Add(200, `{"Id":"abc","Name":"/web","State":{"Status":"running","Running":true,"Pid":42},"HostConfig":{"NetworkMode":"container:def"}}`)
	f.Add(200, `[{"Id":"abc","Names":["/web"],"State":"running","HostConfig":{"NetworkMode":"host"}},{},null]`)
	f.Add(404, `{"message":"No such container"}`)
	f.Add(500, "\xff")
	f.Fuzz(func(t *testing.T, code int, body string) {
		m := &machine{root: "/nonexistent", getenv: func(string) string { return "" }, timeout: time.Second,
			netOwners: func(string) ([]int, error) { return nil, nil }}
		c := conversation{api{m: m, engine: Docker, owner: alice}, &http.Client{Transport: answers{code, body}}}
		if k, err := c.inspect(t.Context(), "web"); err == nil && k.running() {
			t.Errorf("%d %q: it runs as %d", code, body, k.PID)
		}
		all, _ := c.list(t.Context(), "")
		for _, k := range all {
			if k == nil || k.running() {
				t.Errorf("%d %q: %+v", code, body, k)
			}
		}
		s := &survey{candidates: all}
		s.tidy()
		s.choose("web", parse("web"), 0)
		for _, k := range s.candidates {
			_ = k.Ref() + k.String()
		}
		listNames(context.Background(), answers{code, body}, "x", "", "")
		fieldOne([]byte(body))
	})
}

// FuzzInotify parses malformed events.
func FuzzInotify(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 'w', 'e', 'b', 0})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, events []byte) {
		for len(events) >= unix.SizeofInotifyEvent {
			_, _, name, rest := cutEvent(events)
			if len(rest) >= len(events) || len(name) > len(events) {
				t.Fatalf("%x: name %q, rest %x", events, name, rest)
			}
			events = rest
		}
	})
}
