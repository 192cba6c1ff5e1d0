package lan

import (
	"fmt"
	"strings"
)

// Bounds of domain names in bytes (RFC 1035 section 2.3.4).
const (
	maxLabel = 63
	maxName  = 255 // encoded
)

// encodeName appends a domain name as length-prefixed labels (RFC 1035 section 3.1).
func encodeName(b []byte, name string) ([]byte, error) {
	start := len(b)
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" || len(label) > maxLabel {
			return b, fmt.Errorf("name %q: want labels of 1 to %d bytes", name, maxLabel)
		}
		b = append(append(b, byte(len(label))), label...)
	}
	if b = append(b, 0); len(b)-start > maxName {
		return b, fmt.Errorf("name %q: longer than %d bytes", name, maxName)
	}
	return b, nil
}

// fitNames returns as many of the encoded names as fit into room bytes, one after the other,
// and their size.
func fitNames(names [][]byte, room int) (fitting [][]byte, size int) {
	for i, n := range names {
		if size+len(n) > room {
			return names[:i], size
		}
		size += len(n)
	}
	return names, size
}
