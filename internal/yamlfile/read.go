package yamlfile

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// reader walks a document along a type.
type reader struct {
	doc      *Document
	anchors  map[string]ast.Node
	problems []Problem
}

// maxHops bounds how many anchors and aliases lead to one value: an alias may
// stand for one that stands for itself.
const maxHops = 16

// read sets v to what n says. The path is where n stands, and key is the last
// key on the way there, "" at the top.
func (r *reader) read(n ast.Node, v reflect.Value, path, key string) {
	asked := n
	n, ok := r.resolve(n, path)
	if !ok {
		return
	}
	if _, empty := n.(*ast.NullNode); empty && (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) {
		return // all its elements may be commented out
	}
	at := begin(n)
	if _, alias := asked.(*ast.AliasNode); alias {
		at = asked.GetToken() // right where it was written, wrong where it is used
	}
	r.doc.places[path], _ = placeOf(at)
	if v.Kind() == reflect.Pointer {
		to := reflect.New(v.Type().Elem())
		if r.set(n, to.Elem(), path, key, at) {
			v.Set(to)
		}
		return
	}
	r.set(n, v, path, key, at)
}

// set is read for what n stands for, with at as its place. It tells whether n
// is of v's kind; else it is a problem.
func (r *reader) set(n ast.Node, v reflect.Value, path, key string, at *token.Token) bool {
	switch n := n.(type) {
	case *ast.SequenceNode:
		if v.Kind() == reflect.Slice {
			r.readList(n, v, path, key)
			return true
		}
	case *ast.MappingNode:
		switch v.Kind() {
		case reflect.Struct:
			r.readStruct(n, v, path)
			return true
		case reflect.Map:
			r.readMap(n, v, path)
			return true
		}
	default:
		if r.readScalar(n, v, path, at) {
			return true
		}
	}
	r.mistaken(n, at, v.Type(), path, key)
	return false
}

// resolve follows anchors and aliases to the value that they stand for.
func (r *reader) resolve(n ast.Node, path string) (ast.Node, bool) {
	for range maxHops {
		switch a := n.(type) {
		case *ast.AnchorNode:
			n = a.Value
		case *ast.AliasNode:
			name := a.Value.GetToken().Value
			to, ok := r.anchors[name]
			if !ok {
				r.problem(a.GetToken(), path, Problem{Text: fmt.Sprintf("alias *%s: there is no anchor &%s", name, name)})
				return nil, false
			}
			n = to
		case *ast.TagNode:
			r.problem(a.GetToken(), path, Problem{Text: fmt.Sprintf("tag %s: tags have no meaning here", a.GetToken().Value)})
			return nil, false
		case nil:
			return nil, false
		default:
			return n, true
		}
	}
	r.problem(n.GetToken(), path, Problem{Text: "the alias stands for itself"})
	return nil, false
}

func (r *reader) readList(n *ast.SequenceNode, v reflect.Value, path, key string) {
	list := reflect.MakeSlice(v.Type(), len(n.Values), len(n.Values))
	for i, e := range n.Values {
		r.read(e, list.Index(i), childIndex(path, i), key)
	}
	v.Set(list)
}

func (r *reader) readStruct(n *ast.MappingNode, v reflect.Value, path string) {
	given := map[string]Place{}
	for _, m := range n.Values {
		token := m.Key.GetToken()
		key := token.Value
		if r.twice(token, given) {
			continue
		}
		field, ok := fieldOf(v, key)
		if !ok {
			r.problem(token, childKey(path, key), Problem{Text: fmt.Sprintf("unknown key %q", key), Word: key, Known: keysOf(v.Type())})
			continue
		}
		r.read(m.Value, field, childKey(path, key), key)
	}
}

func (r *reader) readMap(n *ast.MappingNode, v reflect.Value, path string) {
	given := map[string]Place{}
	v.Set(reflect.MakeMap(v.Type()))
	for _, m := range n.Values {
		token := m.Key.GetToken()
		if r.twice(token, given) {
			continue
		}
		value := reflect.New(v.Type().Elem()).Elem()
		r.read(m.Value, value, childKey(path, token.Value), token.Value)
		v.SetMapIndex(reflect.ValueOf(token.Value).Convert(v.Type().Key()), value)
	}
}

// twice tells whether a mapping has had the key before, which is a problem.
func (r *reader) twice(key *token.Token, given map[string]Place) bool {
	at, had := given[key.Value]
	if had {
		r.problem(key, "", Problem{Text: fmt.Sprintf("key %q is given twice: line %d has it too", key.Value, at.Line)})
		return true
	}
	given[key.Value], _ = placeOf(key)
	return false
}

// readScalar tells whether n was a single value of v's kind. A duration that is
// none has its problem already.
func (r *reader) readScalar(n ast.Node, v reflect.Value, path string, at *token.Token) bool {
	text, ok := scalar(n)
	if !ok {
		return false
	}
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil {
			want := wanted(v.Type())
			r.problem(at, path, Problem{Text: fmt.Sprintf("duration %q: want %s", text, want), Want: want})
			return true
		}
		v.SetInt(int64(d))
		return true
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return true
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if ok {
			v.SetBool(b.Value)
		}
		return ok
	case reflect.Int, reflect.Uint64:
		i, ok := n.(*ast.IntegerNode)
		return ok && setInteger(v, i.Value)
	}
	return false
}

// scalar is the text of a single value.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// setInteger tells whether v holds the number, an int64 or a uint64.
func setInteger(v reflect.Value, number any) bool {
	n := reflect.ValueOf(number)
	switch {
	case n.CanInt() && v.CanInt() && !v.OverflowInt(n.Int()):
		v.SetInt(n.Int())
	case n.CanInt() && v.CanUint() && n.Int() >= 0:
		v.SetUint(uint64(n.Int()))
	case n.CanUint() && v.CanInt() && n.Uint() <= 1<<63-1 && !v.OverflowInt(int64(n.Uint())):
		v.SetInt(int64(n.Uint()))
	case n.CanUint() && v.CanUint():
		v.SetUint(n.Uint())
	default:
		return false
	}
	return true
}

// mistaken is the problem of a value of the wrong kind.
func (r *reader) mistaken(n ast.Node, at *token.Token, t reflect.Type, path, key string) {
	want := wanted(t)
	if t.Kind() == reflect.Slice {
		want += ", e.g. " + listOf(n, t.Elem())
	}
	text := "want " + want
	if key != "" {
		text = key + ": " + text
	}
	r.problem(at, path, Problem{Text: text, Want: want})
}

// listOf shows how a list of a type is written: with what was written instead, where it could
// be an element.
func listOf(n ast.Node, elem reflect.Type) string {
	if elem.Kind() == reflect.Struct {
		return fmt.Sprintf("[{%s: …}]", keysOf(elem)[0])
	}
	text := n.GetToken().Value
	if _, scalar := n.(ast.ScalarNode); !scalar || text == "" || len(text) > 64 || strings.ContainsAny(text, "\n[]{}") {
		return "[…, …]"
	}
	return "[" + text + "]"
}

// problem adds a problem with the value at a path, which a token begins. The path
// "" is no value's.
func (r *reader) problem(t *token.Token, path string, p Problem) {
	at, _ := placeOf(t)
	p.Line, p.Column = at.Line, at.Column
	r.problems = append(r.problems, p)
	if path == "" {
		return
	}
	r.doc.wrong[path] = true
	if _, has := r.doc.places[path]; !has {
		r.doc.places[path] = at
	}
}

// begin is the first token of a value. A mapping without braces begins with its
// first key; the library says with the colon behind it.
func begin(n ast.Node) *token.Token {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return m.Values[0].Key.GetToken()
	}
	return n.GetToken()
}

// fieldOf is the field of a struct that a key stands for.
func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if tag(v.Type().Field(i)) == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// keysOf are the keys of a struct type, in order.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		keys = append(keys, tag(t.Field(i)))
	}
	return keys
}

func tag(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// wanted says what a value of a type looks like in a file.
func wanted(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a number and a unit, e.g. 500ms, 2s, 1m"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number of 0 or more"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "keys with values"
	}
	return "text"
}
