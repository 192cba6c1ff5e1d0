package container

import (
	"errors"
	"strings"
	"testing"

	"cleat/link"
)

func TestCheckSocketPath(t *testing.T) {
	dir := "/" + strings.Repeat("x", socketPathMax-len("/"+longestSocketName)-1)
	if path := dir + "/" + longestSocketName; len(path) != 107 {
		t.Fatalf("the path has %d bytes, want 107", len(path))
	}
	if err := checkSocketPath(dir); err != nil {
		t.Error(err)
	}
	var lack *link.Lack
	if err := checkSocketPath(dir + "x"); !errors.As(err, &lack) || !strings.Contains(lack.Remedy, "TMPDIR=/tmp") || !strings.Contains(lack.Reason, "at most 69 bytes") {
		t.Errorf("a path of 108 bytes: %v", err)
	}
}
