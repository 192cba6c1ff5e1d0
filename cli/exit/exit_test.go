package exit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"cleat/bench/experiment"
	"cleat/cli/hint"
	"cleat/link"
	"cleat/netns/find"
)

// hinting is an error with a hint of its own.
type hinting struct{}

func (hinting) Error() string { return "broken twice" }

func (hinting) Hint() string { return "buy two" }

func TestReport(t *testing.T) {
	_, unknownPreset := experiment.Load("quikc")
	broken := errors.New("read disk: broken")
	interrupt := Signalled{syscall.SIGINT}
	for _, tt := range []struct {
		name       string
		err, cause error
		code       int
		text       string
	}{
		{"done", nil, nil, 0, ""},
		{"failed", broken, nil, 1, "cleat: error: read disk: broken\n"},
		{"with a hint", hint.With(broken, "buy another"), nil, 1, "cleat: error: read disk: broken\ncleat: hint: buy another\n"},
		{"with a hint of two lines", hint.With(broken, "one\ntwo"), nil, 1, "cleat: error: read disk: broken\ncleat: hint: one\ncleat: hint: two\n"},
		{"with hints inside and outside", hint.With(fmt.Errorf("open: %w", hint.With(broken, "inner")), "outer"), nil, 1,
			"cleat: error: open: read disk: broken\ncleat: hint: outer\ncleat: hint: inner\n"},
		{"with hints of its own", fmt.Errorf("join: %w", errors.Join(hinting{}, hint.With(broken, "buy another"))), nil, 1,
			"cleat: error: join: broken twice\n  read disk: broken\ncleat: hint: buy two\ncleat: hint: buy another\n"},
		{"used wrongly", hint.Usagef("no such %s", "thing"), nil, 2, "cleat: error: no such thing\n"},
		{"used wrongly, wrapped", hint.With(hint.Usagef("no such thing"), "look"), nil, 2, "cleat: error: no such thing\ncleat: hint: look\n"},
		{"unknown preset", unknownPreset, nil, 2, "cleat: error: unknown preset \"quikc\"\ncleat: hint: did you mean \"quick\"?\n"},
		{"the same hint twice", hint.With(unknownPreset, "did you mean \"quick\"?"), nil, 2, "cleat: error: unknown preset \"quikc\"\ncleat: hint: did you mean \"quick\"?\n"},
		{"a container that is two", &find.Ambiguous{Word: "web", Candidates: []*find.Found{{Engine: find.Docker, Name: "web"}, {Engine: find.Podman, Name: "web", Space: "alice"}}}, nil, 2,
			"cleat: error: \"web\" is ambiguous: docker container \"web\", podman container \"web\" of alice\ncleat: hint: give one of: docker:web, podman:alice/web\n"},
		{"a container that nobody has", &find.NotFound{Word: "web", Unasked: []*find.Unasked{{Engine: find.Docker, Err: fs.ErrPermission}}}, nil, 2,
			"cleat: error: ask docker for containers: permission denied; nothing else is called \"web\"\n" +
				"cleat: hint: give a container, a process id, a name from `ip netns list`, or a path such as /proc/PID/ns/net\n" +
				"cleat: hint: sudo lets cleat ask those, too\n"},
		{"a container that sleeps", &find.NotRunning{Found: find.Found{Engine: find.Docker, Name: "web"}, State: "exited", Remedy: "docker start web"}, nil, 1,
			"cleat: error: docker container \"web\" is not running: exited\ncleat: hint: start it: docker start web\n"},
		{"another process failed", fmt.Errorf("run lab: %w", Status(3)), nil, 3, ""},
		{"interrupted in another process", Status(1), interrupt, 130, ""},
		{"nobody reads the output", fmt.Errorf("write table: %w", &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}), nil, 141, ""},
		{"a peer has gone", &fs.PathError{Op: "write", Path: "socket", Err: syscall.EPIPE}, nil, 1, "cleat: error: write socket: broken pipe\n"},
		{"regression", fmt.Errorf("compare: %w", ErrRegression), nil, 3, ""},
		{"interrupted", context.Canceled, interrupt, 130, ""},
		{"interrupted, stopped cleanly", nil, interrupt, 130, ""},
		{"interrupted, and something broke", broken, interrupt, 130, "cleat: error: read disk: broken\n"},
		{"terminated", interrupt, Signalled{syscall.SIGTERM}, 143, ""},
		{"cancelled by the end of run only", nil, context.Canceled, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w bytes.Buffer
			if code := Report(&w, tt.err, tt.cause); code != tt.code {
				t.Errorf("code %d, want %d", code, tt.code)
			}
			if w.String() != tt.text {
				t.Errorf("printed\n%swant\n%s", w.String(), tt.text)
			}
		})
	}
}

func TestWithHintKeepsNil(t *testing.T) {
	if hint.With(nil, "hint") != nil {
		t.Error("an error came out of nothing")
	}
}

// TestRemedyOnce prints a remedy that ends an error's text only once, as its hint.
func TestRemedyOnce(t *testing.T) {
	lack := &link.Lack{What: "veth", Reason: "there is none", Remedy: "modprobe veth"}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{hint.With(fmt.Errorf("make it: %w", lack), lack.Remedy), "cleat: error: make it: veth: there is none\ncleat: hint: modprobe veth\n"},
		{lack, "cleat: error: veth: there is none (modprobe veth)\n"},
		{hint.With(errors.New("a (b)"), "c"), "cleat: error: a (b)\ncleat: hint: c\n"},
	} {
		var out strings.Builder
		hint.Print(&out, tt.err)
		if out.String() != tt.want {
			t.Errorf("got %q, want %q", out.String(), tt.want)
		}
	}
}
