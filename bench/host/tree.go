package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// files reads small text files below a root and remembers which of them exist
// but may not be read.
type files struct {
	fsys       fs.FS
	unreadable map[string]bool
}

func newFiles(fsys fs.FS) *files {
	return &files{fsys: fsys, unreadable: map[string]bool{}}
}

// rel is a path in the form that package fs wants.
func rel(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// read is the content of a file without surrounding white space; "" when there
// is none or it can't be read.
func (f *files) read(name string) string {
	b, err := fs.ReadFile(f.fsys, rel(name))
	if errors.Is(err, fs.ErrPermission) {
		f.deny("/" + rel(name))
	}
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// number is a file that holds one integer.
func (f *files) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(f.read(name), 10, 64)
	return n, err == nil
}

// list names the entries of a directory, sorted.
func (f *files) list(dir string) []string {
	entries, err := fs.ReadDir(f.fsys, rel(dir))
	if errors.Is(err, fs.ErrPermission) {
		f.deny("/" + rel(dir))
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// glob is list for a pattern, as full names.
func (f *files) glob(pattern string) []string {
	names, _ := fs.Glob(f.fsys, rel(pattern))
	return names
}

func (f *files) exists(name string) bool {
	_, err := fs.Stat(f.fsys, rel(name))
	return err == nil
}

// deny notes a fact that was there but refused.
func (f *files) deny(what string) { f.unreadable[what] = true }

// denied lists what could not be read, sorted.
func (f *files) denied() []string { return slices.Sorted(maps.Keys(f.unreadable)) }

// field is the value after "key<space>*:" in text of the form of /proc/cpuinfo
// and /proc/meminfo; the first one counts.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// parseList reads the kernel's list form, e.g. "0-3,8,10-11" (cpuset(7)).
func parseList(s string) ([]int, error) {
	var out []int
	if s = strings.TrimSpace(s); s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		if err != nil {
			return nil, fmt.Errorf("parse list %q: %w", s, err)
		}
		b := a
		if ranged {
			if b, err = strconv.Atoi(hi); err != nil {
				return nil, fmt.Errorf("parse list %q: %w", s, err)
			}
		}
		if b < a || b-a > maxCPUs {
			return nil, fmt.Errorf("parse list %q: bad range %q", s, part)
		}
		for i := a; i <= b; i++ {
			out = append(out, i)
		}
	}
	return out, nil
}

// maxCPUs bounds what a list may expand to: CONFIG_NR_CPUS is at most 8192.
const maxCPUs = 8192

// chosen is the word in brackets of files such as "always [madvise] never".
func chosen(s string) string {
	_, rest, ok := strings.Cut(s, "[")
	if !ok {
		return s
	}
	word, _, _ := strings.Cut(rest, "]")
	return word
}
