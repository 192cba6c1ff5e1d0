package overlay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/overlay/member"
	"cleat/overlay/registry"
)

// backup answers a request of this host's root with a copy of the registry.
func (n *Node) backup(w http.ResponseWriter, r *http.Request) {
	if n.isExternal() {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(errorFor(errExternal))
		return
	}
	out := &counter{Writer: w}
	if err := n.registry.Backup(r.Context(), out); err != nil {
		if out.bytes > 0 {
			panic(http.ErrAbortHandler) // whoever reads it notices
		}
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(errorFor(err))
	}
}

type counter struct {
	io.Writer
	bytes int
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.bytes += n
	return n, err
}

// A RestoreError is why a host can't restore the registry.
type RestoreError struct {
	Text string
	Help string // what to type next
}

func (e *RestoreError) Error() string { return "restore the registry: " + e.Text }

// Hint returns what to type next; it may be empty.
func (e *RestoreError) Hint() string { return e.Help }

// Restore makes a registry from a backup, with this host's member as the only one. What the host had of the registry
// stays in a directory beside it. It is called while no Node runs for the directory; one that is started afterwards
// tells the other hosts. On error nothing has changed.
func Restore(ctx context.Context, path, backup string, log func(format string, args ...any)) error {
	d := dir(path)
	s, err := Load(path)
	if err != nil {
		return err
	}
	authority, err := d.authority()
	switch {
	case err != nil:
		return err
	case s == nil:
		return &RestoreError{"this host belongs to no cluster", ""}
	case s.Etcd != nil:
		return errExternal
	case s.Removed:
		return &RestoreError{"this host was removed from the cluster", ""}
	case authority == nil:
		return &RestoreError{"this host does not have the cluster's authority, which is where members of the registry are or were",
			"do it on such a host (cleat-node status), or copy its file " + d.path(authorityFile) + " here"}
	}
	f, err := os.Open(backup)
	if err != nil {
		return fmt.Errorf("restore the registry: %w", err)
	}
	err = errors.Join(registry.CheckBackup(f), f.Close())
	if err != nil {
		return fmt.Errorf("restore the registry from %s: %w", backup, err)
	}
	nonce := newNonce()
	fresh := d.path(newRegistry)
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := member.Restore(backup, fresh, s.Host, s.Cluster+nonce); err != nil {
		return err
	}
	incarnation, err := d.prepare(ctx, s, fresh, nonce, log)
	if err == nil {
		err = d.putAside()
	}
	if err == nil {
		err = os.Rename(fresh, d.path(registryDir))
	}
	if err != nil {
		_ = os.RemoveAll(fresh)
		return err
	}
	s.Incarnation = incarnation
	return d.writeSettings(*s)
}

// prepare makes a registry that was restored, in a directory, one of this host's cluster and of a new incarnation.
func (d dir) prepare(ctx context.Context, s *Settings, data, nonce string, log func(string, ...any)) (incarnation string, err error) {
	m, err := d.readMirror()
	if err != nil {
		return "", err
	}
	self, known := m.Hosts[s.Host]
	if !known {
		return "", &RestoreError{"this host does not know its own record: its file " + d.path(mirrorFile) + " is lost", ""}
	}
	sockets, err := os.MkdirTemp("", "cleat") // short paths
	if err != nil {
		return "", fmt.Errorf("restore the registry: %w", err)
	}
	defer os.RemoveAll(sockets)
	run, err := member.Start(member.Config{Host: s.Host, Dir: data, Sockets: sockets, ID: s.Cluster, Log: log})
	if err != nil {
		return "", err
	}
	defer run.Close()
	r, err := registry.Open(registry.Config{Endpoints: []string{registry.Address(s.gate())},
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return member.DialClients(sockets)(ctx) }})
	if err != nil {
		return "", err
	}
	defer r.Close()
	c, err := r.Cluster(ctx)
	switch {
	case errors.As(err, new(*registry.NotFoundError)):
		return "", &RestoreError{"the backup has no cluster", ""}
	case err != nil:
		return "", err
	case c.ID != s.Cluster:
		return "", &RestoreError{fmt.Sprintf("the backup is of cluster %s, and this host of %s", c.ID, s.Cluster), ""}
	}
	incarnation = nextIncarnation(max(c.Incarnation, s.Incarnation), nonce)
	err = r.Adopt(ctx, incarnation, self)
	if errors.As(err, new(*registry.BuriedError)) {
		err = &RestoreError{"the backup says that this host was removed from the cluster", "do it on another host"}
	}
	return incarnation, err
}

// newNonce returns random text by which registries differ that were made from the same one.
func newNonce() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails (package crypto/rand)
	return hex.EncodeToString(b[:])
}

// nextIncarnation returns an incarnation after another one. Two that are made after the same one differ.
func nextIncarnation(last, nonce string) string {
	number, _, _ := strings.Cut(last, "-")
	i, _ := strconv.Atoi(number)
	const digits = 6 // so that later ones are greater as strings
	return fmt.Sprintf("%0*d-%s", digits, i+1, nonce)
}

// putAside renames the data of this host's member of the registry. Called again after it was interrupted, it keeps what
// it has put aside.
func (d dir) putAside() error {
	if !member.Exists(d.path(registryDir)) {
		return os.RemoveAll(d.path(registryDir))
	}
	if err := os.RemoveAll(d.path(oldRegistry)); err != nil {
		return err
	}
	return os.Rename(d.path(registryDir), d.path(oldRegistry))
}

// SaveBackup writes a backup to a file that only root may read. write gets the open file.
func SaveBackup(path string, write func(io.Writer) error) error {
	temp := path + ".new"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	defer os.Remove(temp)
	err = write(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = registry.CheckBackup(f)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the backup %s: %w", filepath.Base(path), err)
	}
	return os.Rename(temp, path)
}
