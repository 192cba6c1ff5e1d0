package vm

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is one line or stanza of an apt configuration.
type source struct {
	types, uris, suites, components []string
	signedBy                        string // path or key; "": any trusted key
}

// debianSuites are the names under which Debian publishes its main archive. Security
// updates are at another address and not needed here.
var debianSuites = []string{
	"bullseye", "bookworm", "trixie", "forky", "duke", "sid",
	"oldoldstable", "oldstable", "stable", "testing", "unstable",
}

// isDebianArchive reports whether a source is the Debian archive. Third parties that use
// the names of Debian's suites have a key of their own.
func (s source) isDebianArchive() bool {
	if !slices.Contains(s.types, "deb") || !slices.Contains(s.components, "main") {
		return false
	}
	if s.signedBy != "" && !strings.HasPrefix(filepath.Base(s.signedBy), "debian-archive-") {
		return false
	}
	return slices.ContainsFunc(s.suites, func(suite string) bool {
		suite = strings.TrimSuffix(strings.TrimSuffix(suite, "-updates"), "-backports")
		return slices.Contains(debianSuites, suite)
	})
}

// mirrors returns the addresses of the Debian archive in the apt configuration under dir
// (/etc/apt), in its order, each once.
func mirrors(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "sources.list.d", "*"))
	if err != nil {
		return nil, err
	}
	var uris []string
	for _, name := range append([]string{filepath.Join(dir, "sources.list")}, files...) {
		parse := map[string]func(io.Reader) ([]source, error){".list": parseList, ".sources": parseDeb822}[filepath.Ext(name)]
		if parse == nil {
			continue // apt ignores other extensions, too
		}
		sources, err := parseFile(name, parse)
		if err != nil {
			return nil, err
		}
		for _, s := range sources {
			for _, u := range s.uris {
				if s.isDebianArchive() && !slices.Contains(uris, u) {
					uris = append(uris, u)
				}
			}
		}
	}
	return uris, nil
}

// parseFile parses one file. A missing file has no sources.
func parseFile(name string, parse func(io.Reader) ([]source, error)) ([]source, error) {
	f, err := os.Open(name)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parse(f)
}

// parseList parses the one-line format: deb [option=value …] URI suite component….
func parseList(r io.Reader) ([]source, error) {
	var out []source
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		line, _, _ := strings.Cut(sc.Text(), "#")
		line = strings.TrimSpace(strings.ReplaceAll(line, "\t", " "))
		kind, rest, _ := strings.Cut(line, " ")
		s := source{types: []string{kind}}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			options, after, _ := strings.Cut(rest[1:], "]")
			for _, o := range strings.Fields(options) {
				if v, ok := strings.CutPrefix(o, "signed-by="); ok {
					s.signedBy = v
				}
			}
			rest = after
		}
		words := strings.Fields(rest)
		if len(words) < 2 {
			continue
		}
		s.uris, s.suites, s.components = words[:1], words[1:2], words[2:]
		out = append(out, s)
	}
	return out, sc.Err()
}

// parseDeb822 parses stanzas of "Field: values", continued on indented lines.
func parseDeb822(r io.Reader) ([]source, error) {
	var out []source
	fields, last := map[string]string{}, ""
	flush := func() {
		if len(fields) > 0 && !strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no") {
			out = append(out, source{
				types: strings.Fields(fields["types"]), uris: strings.Fields(fields["uris"]),
				suites: strings.Fields(fields["suites"]), components: strings.Fields(fields["components"]),
				signedBy: strings.TrimSpace(fields["signed-by"]),
			})
		}
		fields, last = map[string]string{}, ""
	}
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += "\n" + line
		default:
			name, value, _ := strings.Cut(line, ":")
			last = strings.ToLower(strings.TrimSpace(name))
			fields[last] = value
		}
	}
	flush()
	return out, sc.Err()
}
