package survey

import (
	"slices"
	"strconv"
	"strings"
)

// Named are the namespaces that somebody may mean by a word: a label first, then
// the name of a container or file, a process's number, a path, or the beginning of
// a container's identifier. Of "web/eth0" the link is ignored.
func (s *Survey) Named(word string) []*Namespace {
	if word == "" {
		return nil
	}
	base, _, _ := strings.Cut(word, "/")
	pid, err := strconv.Atoi(word)
	for _, is := range []func(*Namespace) bool{
		func(n *Namespace) bool { return n.Label == word || n.Label == base && base != "" },
		func(n *Namespace) bool { return n.Container == word || slices.Contains(n.Names, word) },
		func(n *Namespace) bool { return err == nil && n.PID == pid },
		func(n *Namespace) bool { return isShortened(n.Container, word) },
	} {
		var out []*Namespace
		for i := range s.Namespaces {
			if is(&s.Namespaces[i]) {
				out = append(out, &s.Namespaces[i])
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// leastOfID is how much of an identifier must be given.
const leastOfID = 4

// isShortened tells whether one of two identifiers begins with the other.
func isShortened(container, word string) bool {
	return len(word) >= leastOfID && container != "" && (strings.HasPrefix(word, container) || strings.HasPrefix(container, word))
}
