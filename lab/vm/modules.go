package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// modules are depmod's indexes of one kernel.
type modules struct {
	path     map[string]string   // name → path below lib/modules/RELEASE
	requires map[string][]string // name → its dependencies, direct and indirect
	soft     map[string][]string // name → names or aliases that it requests once loaded
	alias    map[string][]string // alias → names; only aliases without wildcards
}

// moduleName returns the kernel's name of a module file: without directory and suffix,
// with '_' for '-'.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// readModules reads depmod's indexes in lib/modules/RELEASE.
func readModules(dir string) (modules, error) {
	m := modules{path: map[string]string{}, requires: map[string][]string{}, soft: map[string][]string{}, alias: map[string][]string{}}
	for _, list := range []struct {
		name  string
		parse func(line string) error
	}{
		{"modules.dep", m.addDep},
		{"modules.softdep", m.addSoftdep},
		{"modules.alias", m.addAlias},
	} {
		f, err := os.Open(filepath.Join(dir, list.name))
		if errors.Is(err, fs.ErrNotExist) && list.name != "modules.dep" {
			continue
		}
		if err != nil {
			return m, err
		}
		err = eachLine(f, list.parse)
		f.Close()
		if err != nil {
			return m, fmt.Errorf("read %s: %w", f.Name(), err)
		}
	}
	return m, nil
}

// eachLine calls f with every line that is neither empty nor a comment.
func eachLine(r io.Reader, f func(string) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := f(line); err != nil {
			return err
		}
	}
	return sc.Err()
}

// addDep parses "path: path path…".
func (m modules) addDep(line string) error {
	file, needs, ok := strings.Cut(line, ":")
	if !ok {
		return fmt.Errorf("no colon in %q", line)
	}
	name := moduleName(file)
	m.path[name] = file
	for _, n := range strings.Fields(needs) {
		m.requires[name] = append(m.requires[name], moduleName(n))
	}
	return nil
}

// addSoftdep parses "softdep name pre: name… post: name…".
func (m modules) addSoftdep(line string) error {
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "softdep" {
		return fmt.Errorf("not a soft dependency: %q", line)
	}
	for _, w := range words[2:] {
		if w != "pre:" && w != "post:" {
			m.soft[moduleName(words[1])] = append(m.soft[moduleName(words[1])], w)
		}
	}
	return nil
}

// addAlias parses "alias alias name".
func (m modules) addAlias(line string) error {
	words := strings.Fields(line)
	if len(words) != 3 || words[0] != "alias" {
		return fmt.Errorf("not an alias: %q", line)
	}
	if !strings.ContainsAny(words[1], "*?[") {
		m.alias[words[1]] = append(m.alias[words[1]], moduleName(words[2]))
	}
	return nil
}

// match returns the names of the modules that match a pattern (path.Match) or alias; none
// for modules that are built in or missing.
func (m modules) match(pattern string) []string {
	name := moduleName(pattern)
	if _, ok := m.path[name]; ok {
		return []string{name}
	}
	if names := m.alias[pattern]; len(names) > 0 {
		return names
	}
	return slices.Sorted(func(yield func(string) bool) {
		for n := range maps.Keys(m.path) {
			if ok, err := path.Match(name, n); ok && err == nil && !yield(n) {
				return
			}
		}
	})
}

// closure returns the modules that match patterns, with all that they require or request,
// each once and after those it requires.
func (m modules) closure(patterns []string) []string {
	var names []string
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, need := range m.requires[name] {
			visit(need)
		}
		for _, wish := range m.soft[name] {
			for _, n := range m.match(wish) {
				visit(n)
			}
		}
		names = append(names, name)
	}
	for _, p := range patterns {
		for _, n := range m.match(p) {
			visit(n)
		}
	}
	return names
}
