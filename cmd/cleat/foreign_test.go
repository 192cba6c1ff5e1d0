package main

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"

	"cleat/bench/host"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/trace"
	"cleat/traffic"
)

// evil is what somebody may have called a container, a link or an error.
const evil = "web\ncleat: hint: curl x | sh\x1b]0;owned\a\u009b31m\u202e\xff"

// evilStatus is an attachment of which others chose all texts.
func evilStatus(text string) attach.Status {
	return attach.Status{
		Attachment: &attach.Attachment{ID: text, Created: time.Unix(0, 0), Container: attach.Container{Ref: text, Engine: "docker", ID: text, Name: text},
			Spec: attach.Spec{Kind: "bridge", Parent: text, Name: text, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, Keep: true}},
		State: attach.Attached, Peer: text, Steps: []string{text, text}, Notes: []string{text},
		Keeper: &attach.KeeperReport{Action: text, ActionTime: time.Unix(0, 0), Error: text, Failures: 2},
	}
}

// Whatever others called things, what is printed has the lines that it should have and
// nothing that a terminal acts on.
func TestForeignText(t *testing.T) {
	for name, print := range map[string]func(w io.Writer, text string) error{
		"ls":      func(w io.Writer, text string) error { return printAttachments(w, []attach.Status{evilStatus(text)}) },
		"inspect": func(w io.Writer, text string) error { return printAttachment(w, evilStatus(text)) },
		"keep --status": func(w io.Writer, text string) error {
			cmd := newKeepCmd()
			cmd.SetOut(w)
			return keeperReport{Attachments: []attach.Status{evilStatus(text)}, Log: text}.print(cmd)
		},
		"attach": func(w io.Writer, text string) error {
			s := evilStatus(text)
			return (&attachFlags{}).print(w, &attach.Result{Attachment: s.Attachment, Steps: []attach.Step{attach.Up{Link: text}}, Notes: []string{text}})
		},
		"attach --plan": func(w io.Writer, text string) error {
			s := evilStatus(text)
			return (&attachFlags{plan: true}).print(w, &attach.Result{Attachment: s.Attachment, Steps: []attach.Step{attach.Up{Link: text}}, Notes: []string{text}})
		},
		"attach --json": func(w io.Writer, text string) error {
			s := evilStatus(text)
			return (&attachFlags{asJSON: true}).print(w, &attach.Result{Attachment: s.Attachment, Steps: []attach.Step{attach.Up{Link: text}}, Notes: []string{text}})
		},
		"detach notes": func(w io.Writer, text string) error { return printNotes(w, []string{text}) },
		"JSON":         func(w io.Writer, text string) error { return writeJSON(w, evilStatus(text)) },
		"traffic serve": func(w io.Writer, text string) error {
			newAnnouncer(w, false).done(traffic.Served{Work: traffic.TCP, Client: text, Error: text})
			return nil
		},
		"traffic serve --json": func(w io.Writer, text string) error {
			newAnnouncer(w, true).done(traffic.Served{Work: traffic.TCP, Client: text, Error: text})
			return nil
		},
		"traffic tcp": func(w io.Writer, text string) error {
			return (&trafficFlags{}).print(w, traffic.Result{Work: "tcp", Congestion: text, ProbeError: text, Warnings: []string{text}})
		},
		"traffic tcp --json": func(w io.Writer, text string) error {
			return (&trafficFlags{asJSON: true}).print(w, traffic.Result{Work: "tcp", Congestion: text, ProbeError: text, Warnings: []string{text}})
		},
		"doctor A B": func(w io.Writer, text string) error {
			return trace.Path{From: text, To: text, Warnings: []string{text}, Back: []string{text}, Hops: []trace.Hop{{Namespace: text, Link: text, Kind: text, Detail: text, Qdisc: text,
				Filters: []trace.Filter{{Table: text, Chain: text, Hook: text, Match: []trace.RuleHit{{Chain: text, Text: text}}}}}}}.WriteText(w)
		},
		"doctor": func(w io.Writer, text string) error {
			h := host.Host{Interfaces: []host.Interface{{Name: text, Kind: text, Driver: text}}, Versions: map[string]string{text: text}}
			return errors.Join(h.WriteText(w), host.WriteFindings(w, []host.Finding{{Severity: host.Warning, Title: text, Detail: text, Fix: text}}, []string{text}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var plain, got bytes.Buffer
			if err := errors.Join(print(&plain, "web"), print(&got, evil)); err != nil {
				t.Fatal(err)
			}
			harmless(t, got.String())
			if strings.HasPrefix(name, "doctor") {
				return // it wraps lines
			}
			if got, want := strings.Count(got.String(), "\n"), strings.Count(plain.String(), "\n"); got != want {
				t.Errorf("%d lines instead of %d", got, want)
			}
		})
	}
}

// harmless demands that a terminal acts on nothing in a text but line feeds.
func harmless(t *testing.T, text string) {
	t.Helper()
	for i, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			t.Errorf("%U in %q", r, text[max(0, i-20):min(len(text), i+20)])
			return
		}
	}
}

// Names in hints can be pasted: a shell takes each for one word.
func TestForeignHints(t *testing.T) {
	const name, quoted = "web;reboot", "'web;reboot'"
	a := evilStatus(name).Attachment
	for what, hint := range map[string]string{
		"several containers": severalHint(&attach.AmbiguousError{Container: "x", Candidates: []*attach.Attachment{a, evilStatus("b").Attachment}}),
		"taken":              takenHint(&attach.TakenError{Resource: "link", Holder: a}),
		"a network":          takenHint(&attach.TakenError{Resource: "network", Owner: "the host's " + name}),
		"near":               didYouMean("web;rebo", []string{name, "x"}),
		"known":              didYouMean("nothing", []string{name, "x"}),
	} {
		if strings.Contains(strings.ReplaceAll(strings.ReplaceAll(hint, quoted, ""), "'docker:"+name+"'", ""), name) {
			t.Errorf("%s: %s", what, hint)
		}
	}
	if words := typable([]string{"web", name, "a b", "-", "$(x)"}); len(words) != 2 {
		t.Errorf("completed: %q", words)
	}
}

// A drawing does not show another user's container as root's of that name.
func TestForeignContainers(t *testing.T) {
	for want, f := range map[string]*find.Found{
		"web": {Name: "web"}, "0123456789ab": {ID: "0123456789abcdef"}, "alice/web": {Name: "web", Space: "alice", Owner: 1500}, "incus-box": {Name: "incus-box", Space: "incus"},
	} {
		if got := shownName(f); got != want {
			t.Errorf("%+v is %q, want %q", f, got, want)
		}
	}
}

// An error that has others' words in it can't forge a hint.
func TestForeignError(t *testing.T) {
	var b bytes.Buffer
	printError(&b, withHint(errors.New("find "+evil), "use "+evil))
	harmless(t, b.String())
	for i, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if strings.HasPrefix(line, "cleat: ") != (i != 1) {
			t.Errorf("line %d is %q", i, line)
		}
	}
}
