package attach

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/network/attach"
)

// result is the output of `cleat attach --json`.
type result struct {
	Done       bool               `json:"done"` // false with --plan
	Attachment *attach.Attachment `json:"attachment"`
	Steps      []step             `json:"steps"`
	Notes      []string           `json:"notes"`
}

type step struct {
	Step   string      `json:"step"`
	Text   string      `json:"text"`
	Detail attach.Step `json:"detail"`
}

func (f *flags) print(out io.Writer, got *attach.Result) error {
	if f.json {
		r := result{Done: !f.plan, Attachment: got.Attachment, Steps: []step{}, Notes: term.OrEmpty(got.Notes)}
		for _, s := range got.Steps {
			r.Steps = append(r.Steps, step{attach.StepName(s), s.String(), s})
		}
		return term.WriteJSONLine(out, r)
	}
	var b strings.Builder
	if f.plan {
		for _, s := range got.Steps {
			b.WriteString(columns.Plain(s.String()) + "\n")
		}
	} else {
		a := got.Attachment
		text := fmt.Sprintf("%s has %s: %s", a.Container.ShortName(), a.Spec.Name, kindText(a.Spec))
		if len(a.Spec.Addresses) > 0 {
			text += ", " + join(a.Spec.Addresses, ", ")
		}
		if l := got.Lease; l != nil {
			text += fmt.Sprintf(", %s by DHCP from %s", l.Address, l.Server)
		}
		b.WriteString(columns.Plain(text) + "\n")
	}
	for _, n := range got.Notes {
		b.WriteString(noteText(n))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// kindText describes the kind of a link, with mode, parent and VLAN.
func kindText(w attach.Spec) string {
	text := w.Kind
	if w.Mode != "" {
		text += " (" + w.Mode + ")"
	}
	if w.Parent != "" {
		text += " on " + w.Parent
	}
	if w.VLAN != 0 {
		text += fmt.Sprintf(", VLAN %d", w.VLAN)
	}
	return text
}

func join[T fmt.Stringer](all []T, sep string) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, sep)
}

// printAttachments writes the table of `cleat ls`.
func printAttachments(out io.Writer, all []attach.Status) error {
	t := term.NewTable(out)
	t.Row("CONTAINER", "LINK", "KIND", "PARENT", "ADDRESSES", "STATE")
	attachments := Attachments(all)
	for _, s := range all {
		w := s.Spec
		parent := w.Parent
		if w.VLAN != 0 {
			parent += fmt.Sprintf(" vlan %d", w.VLAN)
		}
		t.Row(ContainerName(s.Attachment, attachments), w.Name, w.Kind, term.OrDash(parent), term.OrDash(join(addressesOf(s), ",")), stateText(s))
	}
	return t.Flush()
}

// ContainerName returns the name of an attachment's container, qualified with its engine if a
// container of another engine has the name as well.
func ContainerName(a *attach.Attachment, all []*attach.Attachment) string {
	c := a.Container
	if slices.ContainsFunc(all, func(o *attach.Attachment) bool { return o.Container.Name == c.Name && o.Container.Engine != c.Engine }) {
		return c.QualifiedName()
	}
	return c.ShortName()
}

// Attachments returns the attachments of a list of states.
func Attachments(all []attach.Status) []*attach.Attachment {
	attachments := make([]*attach.Attachment, len(all))
	for i, s := range all {
		attachments[i] = s.Attachment
	}
	return attachments
}

// stateText describes the state of an attachment, its lease, and whether it is kept.
func stateText(s attach.Status) string {
	text := string(s.State)
	if s.NeedsKeeper() {
		text += ", kept"
	}
	switch l := s.Lease; {
	case l == nil || l.Expires.IsZero():
	case time.Now().After(l.Expires):
		text += ", lease expired"
	default:
		text += ", lease until " + term.Time(l.Expires)
	}
	if s.Keeper != nil && s.Keeper.Error != "" {
		text += ", failing"
	}
	return text
}

func leaseText(s attach.Status) string {
	switch l := s.Lease; {
	case l == nil:
		return ""
	case l.Expires.IsZero():
		return fmt.Sprintf("from %s, infinite", l.Server)
	default:
		return fmt.Sprintf("from %s until %s", l.Server, term.Time(l.Expires))
	}
}

// addressesOf returns the given addresses and that of the lease.
func addressesOf(s attach.Status) []netip.Prefix {
	if s.Lease == nil {
		return s.Spec.Addresses
	}
	return append(slices.Clip(s.Spec.Addresses), s.Lease.Address)
}

// printAttachment writes the table of `cleat inspect`.
func printAttachment(out io.Writer, s attach.Status) error {
	t := term.NewTable(out)
	line := func(name, value string) {
		if value != "" {
			t.Row(name, value)
		}
	}
	line("container", s.Container.ShortName())
	line("link", s.Spec.Name)
	line("kind", kindText(s.Spec))
	line("state", stateText(s))
	line("addresses", join(addressesOf(s), ", "))
	line("lease", leaseText(s))
	line("gateways", join(s.Spec.Gateways, ", "))
	line("ethernet", s.Address)
	if s.MTU != 0 {
		line("mtu", fmt.Sprint(s.MTU))
	}
	line("host end", s.Peer)
	action, at, failure := KeeperTexts(s.Keeper)
	if action != "" {
		line("keeper", action+", "+at)
	}
	line("error", failure)
	line("since", term.Time(s.Created))
	for i, step := range s.Steps {
		name := ""
		if i == 0 {
			name = "steps"
		}
		t.Row(name, step)
	}
	for _, n := range s.Notes {
		line("note", n)
	}
	return t.Flush()
}

// noteText formats a note, which may have text that others chose.
func noteText(note string) string { return "note: " + columns.Plain(note) + "\n" }

func printNotes(out io.Writer, notes []string) error {
	for _, n := range notes {
		if _, err := io.WriteString(out, noteText(n)); err != nil {
			return err
		}
	}
	return nil
}

// KeeperTexts describes a keeper's last action, its time, and what fails. Each may be "".
func KeeperTexts(r *attach.KeeperReport) (action, at, failure string) {
	if r == nil {
		return "", "", ""
	}
	if !r.ActionTime.IsZero() {
		at = term.Time(r.ActionTime)
	}
	if r.Error != "" {
		failure = r.Error
		if r.Failures > 1 {
			failure += fmt.Sprintf(" (%d times since %s)", r.Failures, term.Time(r.FailingSince))
		}
	}
	return r.Action, at, failure
}
