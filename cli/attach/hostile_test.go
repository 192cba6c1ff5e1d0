package attach

import (
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/cli/term/termtest"
	"cleat/network/attach"
)

// hostileStatus returns an attachment with text that others chose.
func hostileStatus(text string) attach.Status {
	return attach.Status{
		Attachment: &attach.Attachment{ID: text, Created: time.Unix(0, 0), Container: attach.Container{Ref: text, Engine: "docker", ID: text, Name: text},
			Spec: attach.Spec{Kind: "bridge", Parent: text, Name: text, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, Keep: true}},
		State: attach.Attached, Peer: text, Steps: []string{text, text}, Notes: []string{text},
		Keeper: &attach.KeeperReport{Action: text, ActionTime: time.Unix(0, 0), Error: text, Failures: 2},
	}
}

// Text that others chose is printed in as many lines as any other text, and without
// characters that a terminal acts on.
func TestHostileNames(t *testing.T) {
	for name, print := range map[string]func(w io.Writer, text string) error{
		"ls":      func(w io.Writer, text string) error { return printAttachments(w, []attach.Status{hostileStatus(text)}) },
		"inspect": func(w io.Writer, text string) error { return printAttachment(w, hostileStatus(text)) },
		"attach": func(w io.Writer, text string) error {
			s := hostileStatus(text)
			return (&flags{}).print(w, &attach.Result{Attachment: s.Attachment, Steps: []attach.Step{attach.Up{Link: text}}, Notes: []string{text}})
		},
		"attach --plan": func(w io.Writer, text string) error {
			s := hostileStatus(text)
			return (&flags{plan: true}).print(w, &attach.Result{Attachment: s.Attachment, Steps: []attach.Step{attach.Up{Link: text}}, Notes: []string{text}})
		},
		"attach --json": func(w io.Writer, text string) error {
			s := hostileStatus(text)
			return (&flags{json: true}).print(w, &attach.Result{Attachment: s.Attachment, Steps: []attach.Step{attach.Up{Link: text}}, Notes: []string{text}})
		},
		"detach notes": func(w io.Writer, text string) error { return printNotes(w, []string{text}) },
	} {
		t.Run(name, func(t *testing.T) { termtest.CheckPrint(t, print) })
	}
}

// Names in hints can be pasted: a shell reads each as one word.
func TestHostileHints(t *testing.T) {
	const name, quoted = "web;reboot", "'web;reboot'"
	a := hostileStatus(name).Attachment
	for what, hint := range map[string]string{
		"several containers": ambiguousHint(&attach.AmbiguousError{Container: "x", Candidates: []*attach.Attachment{a, hostileStatus("b").Attachment}}),
		"taken":              takenHint(&attach.TakenError{Resource: "link", Holder: a}),
		"a network":          takenHint(&attach.TakenError{Resource: "network", Owner: "the host's " + name}),
	} {
		if strings.Contains(strings.ReplaceAll(strings.ReplaceAll(hint, quoted, ""), "'docker:"+name+"'", ""), name) {
			t.Errorf("%s: %s", what, hint)
		}
	}
}
