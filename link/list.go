package link

import (
	"fmt"
	"slices"
	"strings"
	"unique"
)

// List is an immutable sequence that can be compared with ==, so that specs
// stay comparable. The zero List is empty. It is safe for concurrent use.
type List[T comparable] struct {
	head unique.Handle[node[T]]
}

type node[T comparable] struct {
	first T
	rest  List[T]
}

// ListOf is the list of these elements.
func ListOf[T comparable](elements ...T) List[T] {
	var l List[T]
	for _, e := range slices.Backward(elements) {
		l = List[T]{unique.Make(node[T]{e, l})}
	}
	return l
}

// All is a fresh slice of the elements.
func (l List[T]) All() []T {
	var out []T
	for l != (List[T]{}) {
		n := l.head.Value()
		out = append(out, n.first)
		l = n.rest
	}
	return out
}

// String is the elements with commas between them, as Parse reads them.
func (l List[T]) String() string {
	var out []string
	for _, e := range l.All() {
		out = append(out, fmt.Sprint(e))
	}
	return strings.Join(out, ",")
}

// orderedLike is got with the elements that want also has first and in want's
// order: the kernel reports sets in an order of its own.
func sortLike[T comparable](want, got []T) List[T] {
	var out []T
	for _, e := range want {
		if slices.Contains(got, e) {
			out = append(out, e)
		}
	}
	for _, e := range got {
		if !slices.Contains(want, e) {
			out = append(out, e)
		}
	}
	return ListOf(out...)
}

// list is a List as a parameter: elements separated by commas.
type list[T comparable] struct {
	p       *List[T]
	parse   func(string) (T, bool)
	element string // one element, for people
	enc     func([]T) ([]byte, error)
	dec     func([]byte) ([]T, error)
}

func (v list[T]) isZero() bool    { return *v.p == List[T]{} }
func (v list[T]) allowed() string { return v.element + ", separated by commas, each once" }
func (v list[T]) text() string    { return v.p.String() }

func (v list[T]) valid() bool {
	seen := map[T]bool{}
	for _, e := range v.p.All() {
		if _, ok := v.parse(fmt.Sprint(e)); !ok || seen[e] {
			return false
		}
		seen[e] = true
	}
	return true
}

func (v list[T]) setText(s string) bool {
	var all []T
	for _, part := range strings.Split(s, ",") {
		e, ok := v.parse(strings.TrimSpace(part))
		if !ok {
			return false
		}
		all = append(all, e)
	}
	*v.p = ListOf(all...)
	return v.valid()
}

func (v list[T]) encode(linkNames) ([]byte, error) { return v.enc(v.p.All()) }

func (v list[T]) decode(b []byte, _ linkNames) error {
	all, err := v.dec(b)
	*v.p = ListOf(all...)
	return err
}
