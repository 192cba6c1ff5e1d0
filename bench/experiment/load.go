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
var presets = []string{"quick", "claassen2015", "bridge-netfilter", "virtual-interfaces", "udp", "overlays", "wire"}

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
		err = checkKeys(doc, reflect.TypeFor[Experiment]())
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

// checkKeys holds the keys of a mapping, and of all mappings within, against
// the fields of the type it is to become; and durations, whose mistakes the
// decoder reports without their place.
func checkKeys(n ast.Node, t reflect.Type) error {
	switch n := n.(type) {
	case *ast.AnchorNode:
		return checkKeys(n.Value, t)
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode:
		if t != reflect.TypeFor[time.Duration]() {
			return nil
		}
		word := n.GetToken().Value
		if _, err := time.ParseDuration(word); err != nil {
			e := wrong("", "duration %q: want a number and a unit, e.g. 500ms, 2s, 1m", word)
			e.at(n.GetToken())
			return e
		}
	case *ast.SequenceNode:
		if t.Kind() != reflect.Slice {
			return nil // the decoder will say so
		}
		for _, v := range n.Values {
			if err := checkKeys(v, t.Elem()); err != nil {
				return err
			}
		}
	case *ast.MappingNode:
		if t.Kind() != reflect.Struct {
			return nil
		}
		for _, v := range n.Values {
			key := v.Key.GetToken()
			field, ok := fieldOf(t, key.Value)
			if !ok {
				e := unknown("", "key", key.Value, keysOf(t))
				e.at(key)
				return e
			}
			if err := checkKeys(v.Value, field.Type); err != nil {
				return err
			}
		}
	}
	return nil
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
		e = &Error{Problem: err.Error()}
		var y yaml.Error
		if errors.As(err, &y) {
			e.Problem = y.GetMessage()
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

// at puts the error at a token.
func (e *Error) at(t *token.Token) {
	if t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
}
