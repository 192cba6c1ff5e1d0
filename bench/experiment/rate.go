package experiment

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

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

// units are the decimal prefixes of a rate.
var units = map[byte]float64{'k': 1e3, 'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}

// BitsPerSecond is the rate as a number: 0 for "", Unlimited and Search. The
// error says what a rate looks like.
func (r Rate) BitsPerSecond() (float64, error) {
	if r == "" || r == Unlimited || r == Search {
		return 0, nil
	}
	number, factor := string(r), 1.0
	if u, ok := units[number[len(number)-1]]; ok {
		number, factor = number[:len(number)-1], u
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.ContainsAny(number, "xXpPeE_") || !(v > 0) || math.IsInf(v*factor, 0) {
		return 0, fmt.Errorf("rate %q: want a number above 0 in bit/s, with k, M, G or T if need be", string(r))
	}
	return v * factor, nil
}
