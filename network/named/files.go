package named

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
)

// Files remembers what files of a state directory contain, for a process that reads them again
// and again. It is safe for concurrent use. The zero value is empty, and nil remembers nothing.
type Files struct {
	mu    sync.Mutex
	known map[string]knownFile
	dirs  map[string]knownDir // by path

	forgotten map[netip.Addr]bool // see addForgotten
}

// knownDir is the objects in all files of a directory. To replace a file changes the time of its
// directory.
type knownDir struct {
	info   os.FileInfo
	values any
}

// knownFile is a file as it was read. Files are replaced and never written to, so another file
// has another identity, or was made later.
type knownFile struct {
	info  os.FileInfo
	value any
}

const (
	// maxFiles bounds the memory. Files of containers that are gone are not forgotten one by one.
	maxFiles = 1 << 14
	maxDirs  = 1 << 8
	// settled is the age from which on a file's time tells it from a later one, which may get its
	// inode number. It is longer than a tick of the kernel's coarse clock.
	settled = 50 * time.Millisecond
)

// readFile returns the object in a JSON file. What it refers to must not be changed.
func readFile[T any](f *Files, path string) (*T, error) {
	if f == nil {
		return parseFile[T](path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	f.mu.Lock()
	known, ok := f.known[path]
	f.mu.Unlock()
	if value, is := known.value.(T); ok && is && sameVersion(known.info, info) {
		return &value, nil
	}
	value, err := parseFile[T](path)
	if err != nil || time.Since(info.ModTime()) < settled {
		return value, err
	}
	if now, err := os.Stat(path); err != nil || !sameVersion(now, info) {
		return value, nil // it was replaced before it was read, or after
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil || len(f.known) >= maxFiles {
		f.known = map[string]knownFile{}
	}
	f.known[path] = knownFile{info, *value}
	return value, nil
}

func sameVersion(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

func parseFile[T any](path string) (*T, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	var value T
	if err := json.Unmarshal(b, &value); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &value, nil
}

// readDir returns the objects in the JSON files of a directory, as read reads them. If nothing in
// the directory has changed since the last time, it reads none. What the objects refer to must not be
// changed.
func readDir[T any](f *Files, dir string, read func() ([]*T, error)) ([]*T, error) {
	if f == nil {
		return read()
	}
	info, err := os.Stat(dir)
	if err != nil {
		return read()
	}
	f.mu.Lock()
	known, ok := f.dirs[dir]
	f.mu.Unlock()
	if values, is := known.values.([]T); ok && is && sameVersion(known.info, info) {
		return pointers(values), nil
	}
	all, err := read()
	if err != nil || time.Since(info.ModTime()) < settled {
		return all, err
	}
	if now, err := os.Stat(dir); err != nil || !sameVersion(now, info) {
		return all, nil
	}
	values := make([]T, len(all))
	for i := range all {
		values[i] = *all[i]
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirs == nil || len(f.dirs) >= maxDirs {
		f.dirs = map[string]knownDir{}
	}
	f.dirs[dir] = knownDir{info, values}
	return all, nil
}

// pointers returns pointers to copies of objects.
func pointers[T any](values []T) []*T {
	copies := slices.Clone(values)
	all := make([]*T, len(copies))
	for i := range copies {
		all[i] = &copies[i]
	}
	return all
}
