package multipath

import (
	"fmt"
	"strconv"
	"strings"
)

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
