package yamlfile

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// reader fills a value from a document.
type reader struct {
	doc      *Document
	anchors  map[string]ast.Node
	problems []Problem
}

// maxHops limits how many anchors and aliases lead to one value: an alias may refer to
// itself.
const maxHops = 16

// read sets v to the value of n. path is the position of n in the document, and key the
// last key on that path, "" at the top.
func (r *reader) read(n ast.Node, v reflect.Value, path, key string) {
	asked := n
	n, ok := r.resolve(n, path)
	if !ok {
		return
	}
	if _, empty := n.(*ast.NullNode); empty && (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) {
		return // a key without a value: all its elements may be commented out
	}
	at := begin(n)
	if _, alias := asked.(*ast.AliasNode); alias {
		at = asked.GetToken() // report the place of use: the value itself may be valid elsewhere
	}
	r.doc.places[path] = placeOf(at)
	if v.Kind() == reflect.Pointer {
		to := reflect.New(v.Type().Elem())
		if r.set(n, to.Elem(), path, key, at) {
			v.Set(to)
		}
		return
	}
	r.set(n, v, path, key, at)
}

// set sets v to n, which is resolved and begins at the token at. It reports whether n is
// of v's kind. If not, it records a problem.
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

// resolve follows anchors and aliases to a value.
func (r *reader) resolve(n ast.Node, path string) (ast.Node, bool) {
	for range maxHops {
		switch a := n.(type) {
		case *ast.AnchorNode:
			n = a.Value
		case *ast.AliasNode:
			name := a.Value.GetToken().Value
			to, ok := r.anchors[name]
			if !ok {
				r.problem(a.GetToken(), path, Problem{Text: fmt.Sprintf("alias *%s has no anchor &%s", name, name)})
				return nil, false
			}
			n = to
		case *ast.TagNode:
			r.problem(a.GetToken(), path, Problem{Text: fmt.Sprintf("tag %s is not supported", a.GetToken().Value)})
			return nil, false
		case nil:
			return nil, false
		default:
			return n, true
		}
	}
	r.problem(n.GetToken(), path, Problem{Text: "the alias refers to itself"})
	return nil, false
}

func (r *reader) readList(n *ast.SequenceNode, v reflect.Value, path, key string) {
	list := reflect.MakeSlice(v.Type(), len(n.Values), len(n.Values))
	for i, e := range n.Values {
		r.read(e, list.Index(i), fmt.Sprintf("%s[%d]", path, i), key)
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
			r.problem(token, path+"."+key, Problem{Text: fmt.Sprintf("unknown key %q", key), Word: key, Known: keysOf(v.Type())})
			continue
		}
		r.read(m.Value, field, path+"."+key, key)
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
		r.read(m.Value, value, path+"."+token.Value, token.Value)
		v.SetMapIndex(reflect.ValueOf(token.Value).Convert(v.Type().Key()), value)
	}
}

// twice reports whether a mapping already has the key, and records that as a problem.
func (r *reader) twice(key *token.Token, given map[string]Place) bool {
	at, had := given[key.Value]
	if had {
		r.problem(key, "", Problem{Text: fmt.Sprintf("duplicate key %q: it is already on line %d", key.Value, at.Line)})
		return true
	}
	given[key.Value] = placeOf(key)
	return false
}

// readScalar reports whether n is a scalar of v's kind. It records a problem for an
// invalid duration itself, and then returns true.
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

// setInteger sets v to number, an int64 or a uint64, and reports whether v can hold it.
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

// mistaken records the problem of a value of the wrong kind.
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

// listOf returns an example of a list, which contains the written value where that could
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

// problem adds a problem with the value at path, which begins at token t. An empty path
// stands for no value.
func (r *reader) problem(t *token.Token, path string, p Problem) {
	p.Place = placeOf(t)
	r.problems = append(r.problems, p)
	if path == "" {
		return
	}
	r.doc.wrong[path] = true
	if _, has := r.doc.places[path]; !has {
		r.doc.places[path] = p.Place
	}
}

// begin returns the first token of a value. A block mapping begins with its first key;
// the library returns the colon behind it.
func begin(n ast.Node) *token.Token {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return m.Values[0].Key.GetToken()
	}
	return n.GetToken()
}

// fieldOf returns the field of a struct that a key names.
func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if name := tag(v.Type().Field(i)); name == key && name != noKey {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// keysOf returns the keys of a struct type, in order.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if name := tag(t.Field(i)); name != noKey {
			keys = append(keys, name)
		}
	}
	return keys
}

// noKey is the tag of a field that files don't have.
const noKey = "-"

func tag(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// wanted describes a valid value of type t.
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
		return "a whole number, 0 or more"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "keys with values"
	}
	return "text"
}
