package link_test

import (
	"errors"
	"slices"
	"testing"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Dump lists again what changed meanwhile, returns other errors, and does not go on for ever.
func TestDump(t *testing.T) {
	for _, tt := range []struct {
		name        string
		interrupted int // attempts
		err, want   error
		attempts    int
	}{
		{"at once", 0, nil, nil, 1},
		{"changes", 3, nil, nil, 4},
		{"another error", 1, unix.EPERM, unix.EPERM, 2},
		{"changes never end", 1000, nil, nil, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			attempts := 0
			got, err := link.Dump(func() ([]int, error) {
				if attempts++; attempts <= tt.interrupted {
					return []int{attempts}, netlink.ErrDumpInterrupted
				}
				return []int{attempts}, tt.err
			})
			if !errors.Is(err, tt.want) || attempts != tt.attempts || !slices.Equal(got, []int{attempts}) {
				t.Errorf("%v, %v after %d attempts; want %v after %d", got, err, attempts, tt.want, tt.attempts)
			}
		})
	}
}
