package dhcp

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Why there is no lease, for who decides on it.
var (
	// ErrNoAnswer says that no server answered.
	ErrNoAnswer = errors.New("no DHCP server answered")
	// ErrNak says that a server forbids the address: it must be taken off the link.
	ErrNak = errors.New("a DHCP server forbids the address")
	// ErrRefused says that what servers offered could not be taken.
	ErrRefused = errors.New("what DHCP servers offered could not be taken")
)

// Seen is what happened while an answer was waited for. Texts of servers are quoted, and only
// the last few of a kind are kept.
type Seen struct {
	Sent    int      // messages of ours
	Broken  int      // what came in on the port and is no DHCP message
	Offers  int      // offers, good or not
	Refused []string // what was wrong with offers and confirmations, by server
	Silent  []string // servers that confirmed nothing
	Nak     []string // servers that refused a request, and why
	Taken   []string // addresses that others use, and who
}

// remember appends a text of which the last few are kept, each once.
func remember(to *[]string, text string) {
	for _, t := range *to {
		if t == text {
			return
		}
	}
	*to = append(*to, text)
	if len(*to) > maxRemembered {
		*to = (*to)[1:]
	}
}

// nakText is who said no, and what reason it gave.
func nakText(m *dhcpv4.DHCPv4) string {
	text := nameOf(m)
	if why := strings.TrimRight(m.Message(), "\x00"); why != "" {
		text += fmt.Sprintf(" (%.120q)", why)
	}
	return text
}

// Error says that no lease was to be had. It wraps ErrNoAnswer, ErrNak or ErrRefused.
type Error struct {
	Doing  string // "acquire lease", "renew lease", "rebind lease"
	Link   string
	Within time.Duration
	Seen   Seen
}

// Unwrap is the sentinel.
func (e *Error) Unwrap() error {
	s := e.Seen
	switch {
	case len(s.Nak) > 0:
		return ErrNak
	case len(s.Refused)+len(s.Silent)+len(s.Taken) > 0:
		return ErrRefused
	}
	return ErrNoAnswer
}

// Error tells what was seen.
func (e *Error) Error() string {
	s := e.Seen
	var parts []string
	for _, p := range []struct {
		what string
		all  []string
	}{{"refused by ", s.Nak}, {"not taken: ", s.Refused}, {"", s.Silent}, {"in use: ", s.Taken}} {
		if len(p.all) > 0 {
			parts = append(parts, p.what+strings.Join(p.all, ", "))
		}
	}
	if len(parts) == 0 {
		parts = []string{fmt.Sprintf("%v in %s, asked %s", ErrNoAnswer, e.Within.Round(time.Millisecond), times(s.Sent))}
	}
	if s.Broken > 0 {
		parts = append(parts, fmt.Sprintf("%d messages could not be read", s.Broken))
	}
	return fmt.Sprintf("%s on %s: %s", e.Doing, e.Link, strings.Join(parts, "; "))
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
