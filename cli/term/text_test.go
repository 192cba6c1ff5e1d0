package term

import (
	"testing"
)

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"0 networks":    Count(0, "network"),
		"1 network":     Count(1, "network"),
		"2 networks":    Count(uint64(2), "network"),
		"1 address":     Count(uint32(1), "address"),
		"3 addresses":   Count(3, "address"),
		"1 packet":      Plural("1", "packet"),
		"1.00K packets": Plural("1.00K", "packet"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
