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
	Place
	Text  string   // the mistake, e.g. `unknown key "prot"` or "port: want a whole number"
	Want  string   // what a valid value looks like; "" if Text does not say
	Word  string   // the wrong word; "" if the mistake is not a word
	Known []string // the words that are valid here
}

// Place is the position where a value begins, counted from 1.
type Place struct{ Line, Column int }

// Document records the positions of a file's values. It is read-only and safe for
// concurrent use.
type Document struct {
	places map[string]Place
	wrong  map[string]bool
}

// Place returns the position of the value at a path such as "$.paths[0].remote". For a
// missing value it returns that of the nearest enclosing value, at least 1:1.
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

// Given reports whether the file has a value at a path, valid or not. A list or mapping
// of which only the key exists is not given.
func (d *Document) Given(path string) bool {
	_, ok := d.places[path]
	return ok
}

// Wrong reports whether Read found a problem with the value at a path itself. If so, the
// field has kept its value.
func (d *Document) Wrong(path string) bool { return d.wrong[path] }

// Read reads text into a struct whose fields have yaml tags. Fields that text does not
// mention keep their values. A field may be a struct, string, int, uint64, bool or
// time.Duration, or a pointer, slice or map of these. The document is never nil.
func Read(text []byte, into any) (*Document, []Problem) { return ReadUpTo(text, into, maxTokens) }

// ReadUpTo is Read with another limit of the number of tokens, for files of a trusted user. The
// parser's time grows with the square of that number.
func ReadUpTo(text []byte, into any, tokens int) (*Document, []Problem) {
	v := reflect.ValueOf(into).Elem()
	r := &reader{doc: &Document{places: map[string]Place{}, wrong: map[string]bool{}}, anchors: map[string]ast.Node{}}
	text = bytes.TrimPrefix(text, byteOrderMark)
	body, problem := parse(text, v.Type(), tokens)
	if problem != nil {
		r.doc.wrong["$"] = true
		return r.doc, []Problem{*problem}
	}
	ast.Walk(anchorFinder{r.anchors}, body)
	r.read(body, v, "$", "")
	return r.doc, r.problems
}

// byteOrderMark is the prefix that some editors put in front of UTF-8 text. YAML permits
// it (YAML 1.2.2 section 5.2).
var byteOrderMark = []byte("\xef\xbb\xbf")

// Limits for the parser, whose time grows with the square of both. Within them it needs
// at most half a second (measured on a 2-core virtual machine).
const (
	maxTokens = 8192 // four times the tokens of a tunnel file with 64 paths
	maxDepth  = 32   // nested brackets
)

// bound returns a problem if the text exceeds the parser's limits. The tokenizer's time
// is linear, so it runs first.
func bound(tokens token.Tokens, most int) *Problem {
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
			p.Text, p.Want = "brackets are nested too deeply", fmt.Sprintf("at most %d", maxDepth)
		case i >= most:
			p.Text, p.Want = "the file has too many tokens", fmt.Sprintf("at most %d", most)
		default:
			continue
		}
		p.Text += ": want " + p.Want
		p.Place = placeOf(t)
		return &p
	}
	return nil
}

// parse returns the only document of a text.
func parse(text []byte, t reflect.Type, most int) (ast.Node, *Problem) {
	tokens := lexer.Tokenize(string(text))
	if p := bound(tokens, most); p != nil {
		return nil, p
	}
	// Let the reader report duplicate keys: the parser would stop at the first.
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p := Problem{Place: Place{1, 1}, Text: err.Error()}
		var y yaml.Error
		if errors.As(err, &y) {
			p.Text, p.Place = y.GetMessage(), placeOf(y.GetToken())
		}
		if line, ok := tabbedLine(text); ok { // the parser's message does not name it
			p.Text, p.Place = "a tab in the indentation: want spaces", Place{line, 1}
		}
		return nil, &p
	}
	if len(f.Docs) == 1 && f.Docs[0].Body != nil {
		return f.Docs[0].Body, nil
	}
	p := Problem{Place: Place{1, 1}, Want: "one YAML document with the keys " + strings.Join(keysOf(t), ", ")}
	p.Text = "want " + p.Want
	if len(f.Docs) > 1 {
		p.Place = placeOf(f.Docs[1].Start)
	}
	return nil, &p
}

// tabbedLine returns the first line whose indentation has a tab, counted from 1.
func tabbedLine(text []byte) (line int, ok bool) {
	for l := range bytes.Lines(text) {
		line++
		if indent := l[:len(l)-len(bytes.TrimLeft(l, " \t"))]; bytes.ContainsRune(indent, '\t') {
			return line, true
		}
	}
	return 0, false
}

// placeOf returns the position of a token, or 1:1 if it has none.
func placeOf(t *token.Token) Place {
	if t == nil || t.Position == nil {
		return Place{1, 1}
	}
	return Place{max(1, t.Position.Line), max(1, t.Position.Column)}
}

// anchorFinder collects the values of a document's anchors (&name).
type anchorFinder struct{ found map[string]ast.Node }

// Visit implements ast.Visitor.
func (f anchorFinder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil && a.Value != nil {
		f.found[a.Name.GetToken().Value] = a.Value
	}
	return f
}
