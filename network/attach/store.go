package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cleat/internal/statedir"
	"cleat/network/journal"

	"golang.org/x/sys/unix"
)

// Where things are unless CLEAT_STATE_DIR says otherwise.
const (
	stateEnv   = "CLEAT_STATE_DIR"
	defaultDir = "/var/lib/cleat"
	defaultRun = "/run/cleat/attach"
)

// Store is the place of what is wanted, in files that outlive the machine's end,
// and of what is done, in files that don't matter any longer than that.
//
//	STATE/attachments/ID.json   what is wanted
//	RUN/BOOT/ops/ID             the journal of an attaching that is under way, or was left
//	RUN/BOOT/ops/ID~detached    of a detaching
//	RUN/BOOT/ops/ID~retired     of the undoing of what a container left that is gone
//	RUN/BOOT/live/ID            what undoes an attachment that is there
//	RUN/BOOT/shared/KEY/        what several attachments use, and who does
//	RUN/BOOT/claims/            addresses that are given out
//	RUN/BOOT/leases/ID.json     what a DHCP server gave
//	RUN/BOOT/kept/ID.json       what a keeper last did about it
//
// RUN is /run/cleat/attach; for another state directory than the default it is
// "run" below that one, so that two of them share nothing. BOOT is the kernel's
// boot id: what an earlier kernel had is nobody's concern.
type Store struct {
	state, run, runs string
}

// OpenStore is the store with this state directory, "" being that of the
// environment or the default. Nothing is made before something is to be kept.
func OpenStore(dir string) (*Store, error) {
	if dir == "" {
		dir = os.Getenv(stateEnv)
	}
	if dir == "" {
		dir = defaultDir
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find state directory: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	s := &Store{state: dir, runs: filepath.Join(dir, "run")}
	if dir == defaultDir {
		s.runs = defaultRun
	}
	s.run = filepath.Join(s.runs, strings.TrimSpace(string(boot)))
	return s, s.check()
}

// check refuses directories in which others than root and our user could put files: what is
// in them is done.
func (s *Store) check() error {
	if err := statedir.Check(s.state); err != nil {
		return err
	}
	return statedir.Check(s.runs)
}

// Make makes the state directory if it is not there.
func (s *Store) Make() error {
	if err := os.MkdirAll(s.state, 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	return s.check() // somebody may have been faster
}

// Dir is the state directory.
func (s *Store) Dir() string { return s.state }

// boot is the kernel's boot id.
func (s *Store) boot() string { return filepath.Base(s.run) }

func (s *Store) wanted(id string) string { return filepath.Join(s.state, "attachments", id+".json") }
func (s *Store) op(id string) string     { return filepath.Join(s.run, "ops", id) }
func (s *Store) live(id string) string   { return filepath.Join(s.run, "live", id) }

// What is being undone has a suffix that no id has.
const (
	detached = "~detached" // for good: nothing of it is wanted any more
	retired  = "~retired"  // but it is wanted still
)

// busy is the journal of whatever goes on with an attachment; "" if nothing does.
func (s *Store) busy(id string) string {
	for _, suffix := range []string{"", detached, retired} {
		if _, err := os.Lstat(s.op(id) + suffix); err == nil {
			return s.op(id) + suffix
		}
	}
	return ""
}

// claim is the file that says who has an address; network is one of a certain
// namespace's.
func (s *Store) claim(network, addr string) string {
	return filepath.Join(s.run, "claims", fileName(network)+"="+addr)
}

// shared is the directory of something that several attachments use.
func (s *Store) shared(key string) string { return filepath.Join(s.run, "shared", fileName(key)) }

// prepare makes the directories, and removes what was left of an earlier boot.
func (s *Store) prepare() error {
	if _, err := os.Stat(filepath.Join(s.run, "ops")); err == nil {
		return nil
	}
	if all, err := os.ReadDir(s.runs); err == nil {
		for _, e := range all {
			if e.Name() != s.boot() {
				if err := os.RemoveAll(filepath.Join(s.runs, e.Name())); err != nil {
					return fmt.Errorf("remove state of an earlier boot: %w", err)
				}
			}
		}
	}
	if err := s.Make(); err != nil {
		return err
	}
	for _, d := range []string{filepath.Join(s.state, "attachments"), filepath.Join(s.run, "live"),
		filepath.Join(s.run, "shared"), filepath.Join(s.run, "claims"), filepath.Join(s.run, "leases"), filepath.Join(s.run, "ops")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make state directory: %w", err)
		}
	}
	return nil
}

// lockDir waits for the lock on a directory; the kernel frees it when the process
// ends.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	switch err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = WaitLock(ctx, f)
	case err != nil:
		f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// WaitLock waits in the kernel until f's lock (flock(2)) is ours; on error f is closed. Who
// is interrupted meanwhile leaves the waiting to a goroutine, which lets the lock go at once.
func WaitLock(ctx context.Context, f *os.File) error {
	got := make(chan error, 1)
	go func() {
		for {
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
				got <- err
				return
			}
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			f.Close()
		}
		return err
	case <-ctx.Done():
		go func() { <-got; f.Close() }()
		return ctx.Err()
	}
}

// read is what is wanted under this id; fs.ErrNotExist if nothing is.
func (s *Store) read(id string) (*Attachment, error) { return readAttachment(s.wanted(id)) }

func readAttachment(path string) (*Attachment, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read attachment: %w", err)
	}
	var a Attachment
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, fmt.Errorf("read attachment %s: %w", path, err)
	}
	switch {
	case a.Version > attachmentVersion:
		return nil, fmt.Errorf("read attachment %s: version %d is of a later cleat", path, a.Version)
	case a.ID != attachmentOf(path):
		return nil, fmt.Errorf("read attachment %s: it is not that attachment, but %q", path, a.ID)
	}
	return &a, nil
}

// attachment is what is known of an id by whatever file says it; nil: nothing.
func (s *Store) attachment(id string) *Attachment {
	if a, err := s.read(id); err == nil {
		return a
	}
	for _, path := range []string{s.live(id), s.op(id)} {
		records, _ := journal.Read(path) // the first says it, if there is one
		if first, _, _, _ := parse(records); first.Attachment != nil {
			return first.Attachment
		}
	}
	return nil
}

// attachmentOf is the id of the attachment whose file this is.
func attachmentOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".json") }

// all is every attachment that is wanted, by id; a file that can't be read is an
// error beside the others, and beside what the journal says in its place.
func (s *Store) all() ([]*Attachment, error) {
	names, err := filepath.Glob(filepath.Join(s.state, "attachments", "*.json"))
	if err != nil {
		return nil, fmt.Errorf("list attachments: %w", err)
	}
	slices.Sort(names)
	var out []*Attachment
	var errs []error
	for _, n := range names {
		a, err := readAttachment(n)
		switch {
		case errors.Is(err, fs.ErrNotExist): // detached meanwhile
		case err != nil:
			errs = append(errs, err)
			if a := s.attachment(attachmentOf(n)); a != nil {
				out = append(out, a)
			}
		default:
			out = append(out, a)
		}
	}
	return out, errors.Join(errs...)
}

// withOperations adds to all, by id, the attachments that only the journal of an operation
// knows: one that is being made has no file of its own yet, and one that is being detached has
// none any more. A journal without a record is left out: nothing has been done yet.
func (s *Store) withOperations(all []*Attachment) ([]*Attachment, error) {
	ops, err := os.ReadDir(filepath.Join(s.run, "ops"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return all, fmt.Errorf("list operations: %w", err)
	}
	for _, op := range ops {
		id, _, _ := strings.Cut(op.Name(), "~")
		if slices.ContainsFunc(all, func(a *Attachment) bool { return a.ID == id }) {
			continue
		}
		records, _ := journal.Read(filepath.Join(s.run, "ops", op.Name()))
		if first, _, _, _ := parse(records); first.Attachment != nil {
			all = append(all, first.Attachment)
		}
	}
	slices.SortFunc(all, func(a, b *Attachment) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// idOf is the name of an attachment's files. Different links have different ids: a link's name
// has its dots escaped, so the last dot is the one in front of it, and no engine's name has
// one, so the first dot ends that.
func idOf(c Container, ifname string) string {
	return c.Engine + "." + fileName(c.Name) + "." + strings.ReplaceAll(fileName(ifname), ".", "%2E")
}

// fileName keeps a name as it is where files may have it, and writes the other
// bytes as %XX.
func fileName(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == ':', c == '@', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
