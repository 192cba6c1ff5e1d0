package experiment

import "cleat/internal/rate"

// Rate is a rate in bit/s as people write it: "100M", "10G", "2.5G" (decimal:
// k, M, G, T), or one of the two words below where they make sense. The zero
// Rate is "none given".
type Rate string

// Rates that are not numbers, for the factor "offered".
const (
	Unlimited Rate = "unlimited" // as fast as the sender can
	Search    Rate = "search"    // the highest whose loss stays within LossBound
)

// LossBound is the share of datagrams that may get lost at the rate that a
// search is to find. None at all would measure the scheduler's worst moment
// instead of the path.
const LossBound = 0.005

// BitsPerSecond is the rate as a number: 0 for "", Unlimited and Search. The
// error says what a rate looks like.
func (r Rate) BitsPerSecond() (float64, error) {
	if r == "" || r == Unlimited || r == Search {
		return 0, nil
	}
	return rate.Parse(string(r))
}
