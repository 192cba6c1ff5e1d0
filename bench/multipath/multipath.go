package multipath

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Variants of the links.
const (
	Plain     = "plain"
	Rates     = "rates"
	Delays    = "delays"
	Loss      = "loss"
	BlackHole = "blackhole"
	Flap      = "flap"
)

// Variants returns the variants in the order of the package comment.
func Variants() []string { return []string{Plain, Rates, Delays, Loss, BlackHole, Flap} }

// Describe returns a description of a variant's links; "" for an unknown variant.
func Describe(variant string) string {
	return map[string]string{
		Plain:     "all links are equal",
		Rates:     "100, 100, 50 and 20 % of the rate, in turn",
		Delays:    "1 ms on the first link to 50 ms on the last, one way",
		Loss:      "the last link loses packets",
		BlackHole: "from half-time on the last link drops everything; it stays up",
		Flap:      "the last link is down for half of each second",
	}[variant]
}

// MaxLinks is how many links an experiment may have. The number of a link is one octet
// of its addresses.
const MaxLinks = 64

// Spec describes the links between the two ends. The zero Variant is Plain.
type Spec struct {
	Links          int     // 1…MaxLinks
	RateBitsPerSec float64 // of each; 0: unshaped
	Variant        string
	LossShare      float64 // of the packets of the lossy link, for Loss; 0: DefaultLoss

	// A case of the zoo (package linkzoo) has links of its own. Of the fields above, only
	// Links counts then.
	Zoo              uint64  // seed; 0: none
	ZooCapBitsPerSec float64 // rates are lowered so that their sum is at most this; 0: they are not
	ZooLink          int     // the only link used, from 1; 0: all
}

// DefaultLoss is the default loss of the lossy link of the variant "loss".
const DefaultLoss = 0.01

// Link is one link. Both directions are equal.
type Link struct {
	RateBitsPerSec float64 // 0: unshaped
	Delay          time.Duration
	LossShare      float64
}

// Event is a period in which one link carries nothing.
type Event struct {
	Link     int           // from 0
	From, To time.Duration // since the measurement began
	Silent   bool          // the link stays up and drops everything; else it goes down
}

const (
	leastDelay = time.Millisecond
	mostDelay  = 50 * time.Millisecond
	flapPeriod = time.Second
	flapDown   = 500 * time.Millisecond // of each period, its second half
)

// shares are the rates of the variant "rates", in turn.
var shares = []float64{1, 1, 0.5, 0.2}

// Validate returns an error for the first field that is out of range.
func (s Spec) Validate() error {
	switch {
	case s.Links < 1 || s.Links > MaxLinks:
		return fmt.Errorf("%d links: want 1…%d", s.Links, MaxLinks)
	case s.Variant != "" && !slices.Contains(Variants(), s.Variant):
		return fmt.Errorf("variant %q: want one of %q", s.Variant, Variants())
	case s.LossShare < 0 || s.LossShare > 1:
		return fmt.Errorf("loss %v: want a share from 0 to 1", s.LossShare)
	}
	return nil
}

// Plan returns each link.
func (s Spec) Plan() []Link {
	if c, ok := s.Case(); ok {
		return planCase(c)
	}
	links := make([]Link, s.Links)
	for i := range links {
		l := &links[i]
		l.RateBitsPerSec = s.RateBitsPerSec
		switch s.Variant {
		case Rates:
			l.RateBitsPerSec *= shares[i%len(shares)]
		case Delays:
			l.Delay = leastDelay + (mostDelay-leastDelay)*time.Duration(i)/time.Duration(max(s.Links-1, 1))
		}
	}
	if s.Variant == Loss {
		links[s.Links-1].LossShare = cmp.Or(s.LossShare, DefaultLoss)
	}
	return links
}

// Events returns the events of a measurement of that duration, in the order in which
// they begin.
func (s Spec) Events(whole time.Duration) []Event {
	last := s.Links - 1
	var events []Event
	switch s.Variant {
	case BlackHole:
		events = []Event{{Link: last, From: whole / 2, To: whole, Silent: true}}
	case Flap:
		for from := flapPeriod - flapDown; from < whole; from += flapPeriod {
			events = append(events, Event{Link: last, From: from, To: min(from+flapDown, whole)})
		}
	}
	return events
}

// ParseShare parses a share from 0 to 1, written as "1%" or "0.01".
func ParseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return 0, fmt.Errorf("share %q: want a number from 0 to 1, or a percentage", text)
	}
	return v, nil
}
