package container

import (
	"errors"
	"strings"
	"testing"

	"cleat/link"
)

func TestFits(t *testing.T) {
	dir := "/" + strings.Repeat("x", socketPathMax-len("/"+longestSocket)-1)
	if path := dir + "/" + longestSocket; len(path) != 107 {
		t.Fatalf("the longest path has %d bytes", len(path))
	}
	if err := fits(dir); err != nil {
		t.Error(err)
	}
	var lack *link.Lack
	if err := fits(dir + "x"); !errors.As(err, &lack) || !strings.Contains(lack.Remedy, "TMPDIR=/tmp") || !strings.Contains(lack.Reason, "may have 69 bytes") {
		t.Errorf("one byte more: %v", err)
	}
}
