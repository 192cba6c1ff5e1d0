// Package yamlfile reads YAML files that people write. It is strict and reports the
// position of every mistake.
//
// # Theory of operation
//
// Read walks the parsed text along the Go type that it fills. An unknown key, a duplicate
// key and a value of the wrong kind are each a Problem with line and column, described in
// terms of the file instead of Go types. Read continues after a problem, so that a user
// sees all of them at once. A value with a problem leaves its field unchanged.
//
// Read also records the position of every value by its path ($.paths[0].remote). A caller
// that checks what the values mean can thus report positions, and can tell present values
// from missing ones.
//
// # Limits
//
// One document a file, without tags and merge keys, with at most 8,192 tokens and
// brackets nested 32 deep: the parser's time grows with the square of either. It stops at
// the first syntax error, which is then the only problem. A caller that reads foreign
// files must limit their size.
//
// Sources: YAML 1.2.2 (https://yaml.org/spec/1.2.2). The parser is
// github.com/goccy/go-yaml; its own decoder stops at the first mistake and reports it in
// Go types.
package yamlfile
