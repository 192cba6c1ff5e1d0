package find

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cleat/internal/columns"

	"golang.org/x/sys/unix"
)

// named finds the namespaces that have a name (ip-netns(8)).
type named struct{ m *machine }

const namedDir = "/run/netns"

func (n named) search(_ context.Context, word string) ([]*candidate, error) {
	if word != "" {
		if _, err := os.Stat(n.m.path(namedDir + "/" + word)); err != nil {
			return nil, nil
		}
		return []*candidate{n.m.named(word)}, nil
	}
	entries, err := os.ReadDir(n.m.path(namedDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list named namespaces: %w", err)
	}
	var all []*candidate
	for _, e := range entries {
		all = append(all, n.m.named(e.Name()))
	}
	return all, nil
}

// named returns the namespace of this name, whether or not it exists.
func (m *machine) named(name string) *candidate {
	k := &candidate{Found: Found{Engine: Named, Name: name, path: m.path(namedDir + "/" + name)}}
	k.Net = namespaceAt(k.path)
	k.Host = k.Net != 0 && k.Net == m.hostNet()
	if k.Net == 0 {
		k.state = "the file exists, but no namespace is mounted on it"
		k.remedy = "ip netns delete " + columns.Word(name) + " && ip netns add " + columns.Word(name)
	}
	return k
}

// namespaceAt returns the inode number of the namespace that is mounted on a file in this
// mount namespace, or 0. Namespaces are in a file system of their own.
func namespaceAt(path string) uint64 {
	var at unix.Statfs_t
	var st unix.Stat_t
	if unix.Statfs(path, &at) != nil || at.Type != unix.NSFS_MAGIC || unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}
