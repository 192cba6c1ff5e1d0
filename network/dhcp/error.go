package dhcp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Reasons for an *Error.
var (
	ErrNoAnswer = errors.New("no DHCP server answered")
	// ErrNak means that a server forbids the address. It must be removed from the link.
	ErrNak = errors.New("a DHCP server forbids the address")
	// ErrRefused means that no offer was acceptable.
	ErrRefused = errors.New("no DHCP server made an acceptable offer")
)

// Observations is what happened while waiting for an answer. Texts of servers are quoted. Of
// each kind only the most recent are kept.
type Observations struct {
	Sent        int      // messages sent
	Malformed   int      // received, but no DHCP messages
	Refused     []string // servers and what was wrong with their offers and confirmations
	Unconfirmed []string // servers that did not confirm their offer
	Nak         []string // servers that refused a request, and why
	InUse       []string // addresses that others use, and who
}

func (o *Observations) refuse(m *dhcpv4.DHCPv4, reason string) {
	appendRecent(&o.Refused, serverName(m)+": "+reason)
}

// maxRecent is the number of texts of one kind in Observations.
const maxRecent = 4

// appendRecent appends a text unless it is there already, and drops the oldest if there are too
// many.
func appendRecent(to *[]string, text string) {
	if slices.Contains(*to, text) {
		return
	}
	*to = append(*to, text)
	if len(*to) > maxRecent {
		*to = (*to)[1:]
	}
}

// nakReason returns who refused a request, and the reason that it gave.
func nakReason(m *dhcpv4.DHCPv4) string {
	text := serverName(m)
	if reason := strings.TrimRight(m.Message(), "\x00"); reason != "" {
		text += fmt.Sprintf(" (%.120q)", reason)
	}
	return text
}

// Error means that no lease was granted. It wraps ErrNoAnswer, ErrNak or ErrRefused.
type Error struct {
	Operation string // "acquire lease", "renew lease" or "rebind lease"
	Link      string
	Elapsed   time.Duration
	Observed  Observations
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error {
	o := e.Observed
	switch {
	case len(o.Nak) > 0:
		return ErrNak
	case len(o.Refused)+len(o.Unconfirmed)+len(o.InUse) > 0:
		return ErrRefused
	}
	return ErrNoAnswer
}

func (e *Error) Error() string {
	o := e.Observed
	var parts []string
	for _, p := range []struct {
		prefix string
		texts  []string
	}{{"refused by ", o.Nak}, {"not acceptable: ", o.Refused}, {"", o.Unconfirmed}, {"in use: ", o.InUse}} {
		if len(p.texts) > 0 {
			parts = append(parts, p.prefix+strings.Join(p.texts, ", "))
		}
	}
	if len(parts) == 0 {
		parts = []string{fmt.Sprintf("%v within %s (messages sent: %d)", ErrNoAnswer, e.Elapsed.Round(time.Millisecond), o.Sent)}
	}
	if o.Malformed > 0 {
		parts = append(parts, fmt.Sprintf("%d malformed messages received", o.Malformed))
	}
	return fmt.Sprintf("%s on %s: %s", e.Operation, e.Link, strings.Join(parts, "; "))
}
