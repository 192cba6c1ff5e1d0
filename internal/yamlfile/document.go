package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Problem is a mistake in a file.
type Problem struct {
	Line, Column int      // from 1
	Text         string   // what is wrong, e.g. `unknown key "prot"` or "port: want a whole number"
	Want         string   // what a value looks like here, "" where Text has no such
	Word         string   // the word that is wrong, "" if it is not a word
	Known        []string // the words that may stand here
}

// Place is where a value begins, counted from 1.
type Place struct{ Line, Column int }

// Document is where the values of a file stand. It is read-only, and so safe
// for concurrent use.
type Document struct {
	places map[string]Place
	wrong  map[string]bool
}

// Place is where the value at a path such as "$.paths[0].remote" begins; of one
// that was not given, where the nearest value around it does, at least 1:1.
func (d *Document) Place(path string) Place {
	for {
		if p, ok := d.places[path]; ok {
			return p
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return Place{1, 1}
		}
		path = path[:i]
	}
}

// Given tells whether the file has a value at a path, a right or a wrong one. A
// list or mapping of which nothing but the key is there is not given.
func (d *Document) Given(path string) bool {
	_, ok := d.places[path]
	return ok
}

// Wrong tells whether Read has a Problem with the value at a path itself: then
// what it was read into is as it was before.
func (d *Document) Wrong(path string) bool { return d.wrong[path] }

// Read reads text into a struct, whose fields have yaml tags; what the text does
// not give stays as it is. Fields are structs, pointers, slices and maps of such,
// strings, int, uint64, bool and time.Duration. The document is never nil.
func Read(text []byte, into any) (*Document, []Problem) {
	v := reflect.ValueOf(into).Elem()
	r := &reader{doc: &Document{places: map[string]Place{}, wrong: map[string]bool{}}, anchors: map[string]ast.Node{}}
	text = bytes.TrimPrefix(text, byteOrderMark)
	body, problem := parse(text, v.Type())
	if problem != nil {
		r.doc.wrong["$"] = true
		return r.doc, []Problem{*problem}
	}
	ast.Walk(anchorFinder{r.anchors}, body)
	r.read(body, v, "$", "")
	return r.doc, r.problems
}

// byteOrderMark is what some editors begin UTF-8 text with. YAML lets it stand there (YAML
// 1.2.2 section 5.2).
var byteOrderMark = []byte("\xef\xbb\xbf")

// What the parser, which takes time in proportion to their squares, is given at most: it
// has done with that within half a second here.
const (
	maxTokens = 8192 // four times what a tunnel file with 64 paths has
	maxDepth  = 32   // of brackets
)

// bound tells of text that the parser would take long for; nil: it would not. To cut text
// into tokens takes time in proportion to its length.
func bound(tokens token.Tokens) *Problem {
	depth := 0
	for i, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		var p Problem
		switch {
		case depth > maxDepth:
			p.Text, p.Want = "brackets in brackets in brackets", fmt.Sprintf("at most %d", maxDepth)
		case i >= maxTokens:
			p.Text, p.Want = "the file has too many words and signs", fmt.Sprintf("at most %d", maxTokens)
		default:
			continue
		}
		p.Text += ": want " + p.Want
		p.at(t)
		return &p
	}
	return nil
}

// parse returns the one document that text has to hold.
func parse(text []byte, t reflect.Type) (ast.Node, *Problem) {
	tokens := lexer.Tokenize(string(text))
	if p := bound(tokens); p != nil {
		return nil, p
	}
	// Keys given twice are the reader's: the parser would stop at the first.
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p := Problem{Line: 1, Column: 1, Text: err.Error()}
		var y yaml.Error
		if errors.As(err, &y) {
			p.Text = y.GetMessage()
			p.at(y.GetToken())
		}
		return nil, &p
	}
	if len(f.Docs) == 1 && f.Docs[0].Body != nil {
		return f.Docs[0].Body, nil
	}
	p := Problem{Line: 1, Column: 1, Want: "one YAML document with the keys " + strings.Join(keysOf(t), ", ")}
	p.Text = "want " + p.Want
	if len(f.Docs) > 1 && f.Docs[1].Start != nil {
		p.at(f.Docs[1].Start)
	}
	return nil, &p
}

// at puts the problem at a token.
func (p *Problem) at(t *token.Token) {
	if at, ok := placeOf(t); ok {
		p.Line, p.Column = at.Line, at.Column
	}
}

// placeOf is where a token begins.
func placeOf(t *token.Token) (Place, bool) {
	if t == nil || t.Position == nil {
		return Place{1, 1}, false
	}
	return Place{max(1, t.Position.Line), max(1, t.Position.Column)}, true
}

// anchorFinder collects what the anchors of a document (&name) stand before.
type anchorFinder struct{ found map[string]ast.Node }

// Visit implements ast.Visitor.
func (f anchorFinder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil && a.Value != nil {
		f.found[a.Name.GetToken().Value] = a.Value
	}
	return f
}

// childKey is the path of a key's value.
func childKey(path, key string) string { return path + "." + key }

// childIndex is the path of a list's element.
func childIndex(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
