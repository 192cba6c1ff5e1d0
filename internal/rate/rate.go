// Package rate parses rates in bit/s as people write them, "100M" or "2.5G", in
// experiments, tunnel files and flags.
package rate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Want describes a valid rate, for errors.
const Want = "a number above 0 in bit/s, with an optional k, M, G or T"

// prefixes are decimal, as in IEEE 802.3.
var prefixes = map[byte]float64{'k': 1e3, 'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}

// Parse returns the rate in bit/s. It is above 0 and finite. An error describes a valid
// rate.
func Parse(text string) (float64, error) {
	number, factor := text, 1.0
	if text != "" {
		if p, ok := prefixes[text[len(text)-1]]; ok {
			number, factor = text[:len(text)-1], p
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.ContainsAny(number, "xXpPeE_") || !(v > 0) || math.IsInf(v*factor, 0) {
		return 0, fmt.Errorf("rate %q: want %s", text, Want)
	}
	return v * factor, nil
}

// Text formats a whole rate so that Parse can read it, with the largest prefix that
// leaves a whole number: 2500M.
func Text(bitsPerSec int64) string {
	for _, p := range []string{"T", "G", "M", "k"} {
		if f := int64(prefixes[p[0]]); bitsPerSec > 0 && bitsPerSec%f == 0 {
			return strconv.FormatInt(bitsPerSec/f, 10) + p
		}
	}
	return strconv.FormatInt(bitsPerSec, 10)
}
