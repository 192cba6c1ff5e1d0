package link

import (
	"fmt"
	"slices"
	"strings"
	"unique"
)

// List is an immutable sequence that can be compared with ==, which keeps specs
// comparable. The zero List is empty. It is safe for concurrent use.
type List[T comparable] struct {
	head unique.Handle[node[T]]
}

type node[T comparable] struct {
	first T
	rest  List[T]
}

// ListOf returns a list of the elements.
func ListOf[T comparable](elements ...T) List[T] {
	var l List[T]
	for _, e := range slices.Backward(elements) {
		l = List[T]{unique.Make(node[T]{e, l})}
	}
	return l
}

// All returns the elements in a new slice.
func (l List[T]) All() []T {
	var out []T
	for l != (List[T]{}) {
		n := l.head.Value()
		out = append(out, n.first)
		l = n.rest
	}
	return out
}

// String returns the elements separated by commas, as Parse accepts them.
func (l List[T]) String() string {
	var out []string
	for _, e := range l.All() {
		out = append(out, fmt.Sprint(e))
	}
	return strings.Join(out, ",")
}

// sortLike returns got in the order of want, followed by what want does not
// have. The kernel reports sets in an order of its own.
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

// list is a List whose text has commas between the elements. Its attribute is a
// nest of attributes of type attr, one per element and each size bytes long.
type list[T comparable] struct {
	p       *List[T]
	parse   func(string) (T, bool)
	element string // describes an element in messages

	attr      uint16
	size      int
	encodeOne func(T) []byte
	decodeOne func([]byte) T // of size bytes
}

// sorter is a value that the kernel may report in a different order.
type sorter interface {
	sortLike(asked value)
}

func (v list[T]) sortLike(asked value) { *v.p = sortLike(asked.(list[T]).p.All(), v.p.All()) }

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
	for part := range strings.SplitSeq(s, ",") {
		e, ok := v.parse(strings.TrimSpace(part))
		if !ok {
			return false
		}
		all = append(all, e)
	}
	*v.p = ListOf(all...)
	return v.valid()
}

func (v list[T]) encode(linkNames) ([]byte, error) {
	var inner []attribute
	for _, e := range v.p.All() {
		inner = append(inner, attribute{Type: v.attr, Data: v.encodeOne(e)})
	}
	return pack(inner)
}

func (v list[T]) decode(b []byte, _ linkNames) error {
	inner, err := unpack(b)
	if err != nil {
		return err
	}
	var all []T
	for _, a := range inner {
		if len(a.Data) != v.size {
			return errLength
		}
		all = append(all, v.decodeOne(a.Data))
	}
	*v.p = ListOf(all...)
	return nil
}
