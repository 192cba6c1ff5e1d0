package host

import (
	"bytes"
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// files reads small text files below a root, and remembers those that exist but can't be read for
// lack of permission.
type files struct {
	fsys       fs.FS
	unreadable map[string]bool
}

func newFiles(fsys fs.FS) *files {
	return &files{fsys: fsys, unreadable: map[string]bool{}}
}

// rel returns a path in the form of package fs.
func rel(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// read returns the content of a file without surrounding white space, "" if it can't be read.
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

// number returns the content of a file that holds one integer.
func (f *files) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(f.read(name), 10, 64)
	return n, err == nil
}

// list returns the names in a directory, sorted.
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

func (f *files) glob(pattern string) []string {
	names, _ := fs.Glob(f.fsys, rel(pattern))
	return names
}

func (f *files) exists(name string) bool {
	_, err := fs.Stat(f.fsys, rel(name))
	return err == nil
}

func (f *files) deny(fact string) { f.unreadable[fact] = true }

// field returns the first value after "key<space>*:" in text of the form of /proc/cpuinfo and
// /proc/meminfo.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// parseList parses the kernel's list format, such as "0-3,8,10-11" (cpuset(7)). It returns nil for
// text in another format.
func parseList(s string) []int {
	var out []int
	for part := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		low, high, ranged := strings.Cut(part, "-")
		if !ranged {
			high = low
		}
		a, err := strconv.Atoi(low)
		b, err2 := strconv.Atoi(high)
		if err != nil || err2 != nil || b < a || b-a > maxCPUs {
			return nil
		}
		for i := a; i <= b; i++ {
			out = append(out, i)
		}
	}
	return out
}

// maxCPUs bounds the size of a parsed list: CONFIG_NR_CPUS is at most 8192.
const maxCPUs = 8192

// between returns the text between two delimiters, as in "always [madvise] never". ok is false if
// s does not have the first one.
func between(s, left, right string) (word string, ok bool) {
	_, rest, ok := strings.Cut(s, left)
	word, _, _ = strings.Cut(rest, right)
	return word, ok
}
