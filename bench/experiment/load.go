package experiment

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

//go:embed presets/*.yaml
var presetFiles embed.FS

// presets are the names of the embedded experiments, the main one first.
var presets = []string{"quick", "claassen2015", "bridge-netfilter", "virtual-interfaces", "udp", "overlays", "rootless", "multipath", "wire"}

// Info introduces a preset.
type Info struct {
	Name, Title, Description string
}

// PresetNames are the names of the presets, the main one first.
func PresetNames() []string { return slices.Clone(presets) }

// Presets introduces the presets, the main one first.
func Presets() []Info {
	var infos []Info
	for _, name := range presets {
		if e, err := Load(name); err == nil { // a test loads them all
			infos = append(infos, Info{e.Name, e.Title, e.Description})
		}
	}
	return infos
}

// Load reads a preset by name or, when the name has a slash or ends in .yaml
// or .yml, a file. What it returns is valid. A mistake is an *Error; a file
// that can't be read is not.
func Load(nameOrPath string) (Experiment, error) {
	if strings.ContainsRune(nameOrPath, '/') || strings.HasSuffix(nameOrPath, ".yaml") || strings.HasSuffix(nameOrPath, ".yml") {
		text, err := os.ReadFile(nameOrPath)
		if err != nil {
			return Experiment{}, fmt.Errorf("read experiment: %w", err)
		}
		return Parse(nameOrPath, text)
	}
	text, err := presetFiles.ReadFile("presets/" + nameOrPath + ".yaml")
	if err != nil {
		return Experiment{}, unknown("", "preset", nameOrPath, presets)
	}
	return Parse(nameOrPath+".yaml", text)
}

// Parse reads an experiment from YAML text; file is its name, for messages.
func Parse(file string, text []byte) (Experiment, error) {
	doc, err := document(text)
	if err == nil {
		err = check(doc, reflect.TypeFor[Experiment](), "")
	}
	e := Experiment{Repeat: 10, Warmup: 1}
	if err == nil {
		err = yaml.NewDecoder(bytes.NewReader(text), yaml.DisallowUnknownField()).Decode(&e)
	}
	if err == nil {
		err = e.Validate()
	}
	if err != nil {
		return Experiment{}, located(file, doc, err)
	}
	return e, nil
}

// document parses text, which must hold one YAML document.
func document(text []byte) (ast.Node, error) {
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}
	if len(f.Docs) != 1 || f.Docs[0].Body == nil {
		return nil, wrong("", "want one YAML document with the keys %s", strings.Join(keysOf(reflect.TypeFor[Experiment]()), ", "))
	}
	return f.Docs[0].Body, nil
}

// check holds a value, and all values within, against the type it is to become:
// kinds of values, keys of mappings, and durations. The decoder would report
// these in words of Go or without their place, and cut fractions off. The key
// is where the value stands, "" at the top.
func check(n ast.Node, t reflect.Type, key string) error {
	switch n := n.(type) {
	case *ast.AnchorNode:
		return check(n.Value, t, key)
	case *ast.AliasNode, *ast.NullNode, *ast.TagNode:
		return nil
	case *ast.SequenceNode:
		if t.Kind() == reflect.Slice {
			return checkList(n, t, key)
		}
	case *ast.MappingNode:
		if t.Kind() == reflect.Struct || t.Kind() == reflect.Map {
			return checkMapping(n, t)
		}
	case *ast.StringNode, *ast.LiteralNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return checkScalar(n, t, key)
	}
	return mistaken(n, t, key)
}

func checkList(n *ast.SequenceNode, t reflect.Type, key string) error {
	for _, v := range n.Values {
		if err := check(v, t.Elem(), key); err != nil {
			return err
		}
	}
	return nil
}

func checkMapping(n *ast.MappingNode, t reflect.Type) error {
	for _, v := range n.Values {
		key := v.Key.GetToken()
		var of reflect.Type
		if t.Kind() == reflect.Map {
			of = t.Elem()
		} else if field, ok := fieldOf(t, key.Value); ok {
			of = field.Type
		} else {
			e := unknown("", "key", key.Value, keysOf(t))
			e.at(key)
			return e
		}
		if err := check(v.Value, of, key.Value); err != nil {
			return err
		}
	}
	return nil
}

func checkScalar(n ast.Node, t reflect.Type, key string) error {
	_, whole := n.(*ast.IntegerNode)
	word := n.GetToken().Value
	switch {
	case t == reflect.TypeFor[time.Duration]():
		if _, err := time.ParseDuration(word); err == nil {
			return nil
		}
		e := wrong("", "duration %q: want a number and a unit, e.g. 500ms, 2s, 1m", word)
		e.at(n.GetToken())
		return e
	case t.Kind() == reflect.String, t.Kind() == reflect.Int && whole, t.Kind() == reflect.Uint64 && whole:
		return nil
	}
	return mistaken(n, t, key)
}

// mistaken is the Error for a value of the wrong kind.
func mistaken(n ast.Node, t reflect.Type, key string) error {
	if key != "" {
		key += ": "
	}
	e := wrong("", "%swant %s", key, wanted(t))
	e.at(n.GetToken())
	return e
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	return t.FieldByNameFunc(func(name string) bool {
		f, _ := t.FieldByName(name)
		return f.Tag.Get("yaml") == key
	})
}

// keysOf are the YAML keys of a struct type, in order.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		keys = append(keys, t.Field(i).Tag.Get("yaml"))
	}
	return keys
}

// located adds to err where in the file it is.
func located(file string, doc ast.Node, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Problem: mistake(err)}
		var y yaml.Error
		if errors.As(err, &y) {
			e.at(y.GetToken())
		}
	}
	e.File = file
	if e.Line == 0 && e.path != "" && doc != nil {
		if p, err := yaml.PathString(e.path); err == nil {
			if n, err := p.FilterNode(doc); err == nil && n != nil {
				e.at(n.GetToken())
			}
		}
	}
	return e
}

// mistake is what the YAML library has to say, in words of the file: its own
// for a value of the wrong type name Go's types and fields.
func mistake(err error) string {
	var mismatch *yaml.TypeError
	var overflow *yaml.OverflowError
	var y yaml.Error
	switch {
	case errors.As(err, &mismatch):
		return "want " + wanted(mismatch.DstType)
	case errors.As(err, &overflow):
		return fmt.Sprintf("%s is too large or too small: want %s", overflow.SrcNum, wanted(overflow.DstType))
	case errors.As(err, &y):
		return y.GetMessage()
	}
	return err.Error()
}

// wanted says what a value of a type looks like in a file.
func wanted(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a number and a unit, e.g. 500ms, 2s, 1m"
	}
	switch t.Kind() {
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

// at puts the error at a token.
func (e *Error) at(t *token.Token) {
	if t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
}
