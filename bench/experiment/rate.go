package experiment

import "cleat/internal/rate"

// Rate is a rate in bit/s as package rate parses it ("100M", "2.5G"), or Unlimited or
// Search where they make sense. The zero Rate is "not given".
type Rate string

// Rates that are not numbers, for the factor "offered".
const (
	Unlimited Rate = "unlimited" // as fast as the sender can
	Search    Rate = "search"    // the highest rate whose loss stays within traffic.DefaultLossBound
)

// BitsPerSecond returns the rate as a number: 0 for "", Unlimited and Search. The error
// describes a valid rate.
func (r Rate) BitsPerSecond() (float64, error) {
	if r == "" || r == Unlimited || r == Search {
		return 0, nil
	}
	return rate.Parse(string(r))
}
