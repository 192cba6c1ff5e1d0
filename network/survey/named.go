package survey

import (
	"slices"
	"strconv"
	"strings"
)

// Find returns the namespaces that a person may mean by a word: by label, else by the name of a
// container or file, else by the id of the first process, else by an abbreviated container
// identifier. The link in "web/eth0" is ignored.
func (s *Survey) Find(word string) []*Namespace {
	if word == "" {
		return nil
	}
	base, _, _ := strings.Cut(word, "/")
	pid, err := strconv.Atoi(word)
	for _, matches := range []func(*Namespace) bool{
		func(n *Namespace) bool { return n.Label == word || n.Label == base && base != "" },
		func(n *Namespace) bool { return n.Container == word || slices.Contains(n.Names, word) },
		func(n *Namespace) bool { return err == nil && n.PID == pid },
		func(n *Namespace) bool { return abbreviates(n.Container, word) },
	} {
		var out []*Namespace
		for i := range s.Namespaces {
			if matches(&s.Namespaces[i]) {
				out = append(out, &s.Namespaces[i])
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// minIDPrefix is how many characters of an identifier must be given.
const minIDPrefix = 4

// abbreviates reports whether one of two identifiers begins with the other.
func abbreviates(container, word string) bool {
	return len(word) >= minIDPrefix && container != "" && (strings.HasPrefix(word, container) || strings.HasPrefix(container, word))
}
