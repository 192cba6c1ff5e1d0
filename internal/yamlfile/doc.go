// Package yamlfile reads YAML files that people write: strictly, and with the
// place of every mistake.
//
// # Theory of operation
//
// Read walks the parsed text along the type that it is to become. A key that
// the type does not have, a key given twice, and a value of another kind than
// its place wants are each a Problem with line and column, in words of the file
// instead of Go's. It goes on behind a problem, so that a person sees all of
// them at once; what is wrong keeps the value that it had before.
//
// Read also keeps the place of every value by its path ($.paths[0].remote), so
// that whoever checks what the values mean can say where they stand, and tell
// what was given from what was not.
//
// # Limits
//
// One document a file, without tags and merge keys, of 8,192 words and signs and 32
// brackets in one another at most: the parser takes time in proportion to the square of
// either. It stops at the first thing that is no YAML, which is then the only problem.
// Who reads files of others bounds their size.
//
// Sources: YAML 1.2.2 (https://yaml.org/spec/1.2.2); the parser is
// github.com/goccy/go-yaml, whose decoder stops at its first mistake, and
// reports it in Go's types.
package yamlfile
