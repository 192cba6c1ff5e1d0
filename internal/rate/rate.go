// Package rate reads rates in bit/s as people write them, "100M" or "2.5G", in
// experiments, in tunnel files and on command lines alike.
package rate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Want says what a rate looks like.
const Want = "a number above 0 in bit/s, with k, M, G or T if need be"

// prefixes are decimal, as in IEEE 802.3 and everywhere where bits are counted.
var prefixes = map[byte]float64{'k': 1e3, 'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}

// Parse returns the rate in bit/s, which is above 0 and finite. The error says
// what is wanted.
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

// Text is a whole rate as Parse reads it, with the largest prefix that leaves a whole
// number: 2500M.
func Text(bitsPerSec int64) string {
	for _, p := range []string{"T", "G", "M", "k"} {
		if f := int64(prefixes[p[0]]); bitsPerSec > 0 && bitsPerSec%f == 0 {
			return strconv.FormatInt(bitsPerSec/f, 10) + p
		}
	}
	return strconv.FormatInt(bitsPerSec, 10)
}
