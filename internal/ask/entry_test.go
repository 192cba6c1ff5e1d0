//go:build amd64 || arm64

package ask

import (
	"strings"
	"testing"
	"unsafe"
)

// list is pointers to the strings of a line, n of them, and what the kernel ends it with.
func list(line []byte, n int) []unsafe.Pointer {
	var all []unsafe.Pointer
	for range n {
		all = append(all, unsafe.Pointer(&line[0]))
		if next := index(line) + 1; next < len(line) {
			line = line[next:]
		}
	}
	return append(all, nil)
}

func TestTexts(t *testing.T) {
	line := zeroed("cleat", "", "attach", "web")
	for n, want := range map[int]int{0: 0, 1: len("cleat."), 2: len("cleat.."), 4: len(line)} {
		words := list(line, n)
		all, end := texts(unsafe.Pointer(&words[0]))
		if string(all) != string(line[:want]) || end != unsafe.Pointer(&words[n]) {
			t.Errorf("of %d: %q, its end %t", n, all, end == unsafe.Pointer(&words[n]))
		}
	}
}

// Who put the strings elsewhere did more than the kernel does.
func TestTextsApart(t *testing.T) {
	a, b := zeroed("cleat", "attach"), zeroed("web")
	words := append(list(a, 2)[:2], list(b, 1)...)
	if all, end := texts(unsafe.Pointer(&words[0])); all != nil || end != unsafe.Pointer(&words[3]) {
		t.Errorf("%q, its end %t", all, end == unsafe.Pointer(&words[3]))
	}
}

// TestBegin has the first words of a process that no keeper would be asked by.
func TestBegin(t *testing.T) {
	for _, name := range []string{"cleat keep", "cleat", ""} {
		args := strings.Fields(name)
		words := []unsafe.Pointer{unsafe.Add(nil, len(args))}
		words = append(words, list(zeroed(args...), len(args))...)
		words = append(words, list(zeroed("HOME=/root"), 1)...)
		asked = false
		begin(unsafe.Pointer(&words[0]), new([scratchSize]byte))
		if asked != (len(args) > 0) {
			t.Errorf("%q: %t", name, asked)
		}
	}
}
