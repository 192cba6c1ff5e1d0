package multipath

import (
	"fmt"
	"slices"
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

// Variants lists them in the order of the package comment.
func Variants() []string { return []string{Plain, Rates, Delays, Loss, BlackHole, Flap} }

// Describe says what the links of a variant are like; "" for one that is none.
func Describe(variant string) string {
	return map[string]string{
		Plain:     "all links alike",
		Rates:     "100, 100, 50 and 20 % of the rate, in turn",
		Delays:    "1 ms on the first link to 50 ms on the last, one way",
		Loss:      "the last link loses packets",
		BlackHole: "half-way the last link begins to eat everything, and stays up",
		Flap:      "the last link is down for half of each second",
	}[variant]
}

// MaxLinks is how many links an experiment may have: addresses are by octet, and
// nobody has more.
const MaxLinks = 64

// Spec says what links there are between the two ends. The zero Variant is
// Plain.
type Spec struct {
	Links          int     // 1…MaxLinks
	RateBitsPerSec float64 // of each; 0: as fast as they go
	Variant        string
	LossShare      float64 // of the packets of one link, for Loss; 0: DefaultLoss
}

// DefaultLoss is what the lossy link of the variant "loss" loses.
const DefaultLoss = 0.01

// Link is one of them, both ways alike.
type Link struct {
	RateBitsPerSec float64 // 0: as fast as it goes
	Delay          time.Duration
	LossShare      float64
}

// Event is a time in which one link carries nothing.
type Event struct {
	Link     int           // from 0
	From, To time.Duration // since the measurement began
	Silent   bool          // it stays up and eats everything; else it goes down
}

// What the variants are made of.
const (
	leastDelay = time.Millisecond
	mostDelay  = 50 * time.Millisecond
	flapPeriod = time.Second
	flapDown   = 500 * time.Millisecond // of each period, its second half
)

// shares are the rates of the variant "rates", in turn.
var shares = []float64{1, 1, 0.5, 0.2}

// Validate says what can't be.
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

// Plan is what each link is like.
func (s Spec) Plan() []Link {
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
		links[s.Links-1].LossShare = s.loss()
	}
	return links
}

func (s Spec) loss() float64 {
	if s.LossShare == 0 {
		return DefaultLoss
	}
	return s.LossShare
}

// Events are what happens to the links in a measurement of that length, in the
// order of their beginnings.
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
