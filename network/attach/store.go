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
	"time"

	"cleat/internal/statedir"
)

// Store holds the attachments of one state directory: the files with the
// attachments, which survive a restart of the machine, and those about the changes that were
// made, which do not. STATE is statedir's Path, and RUN its RunPath for the current boot.
//
//	STATE/attachments/ID.json   an Attachment
//	RUN/ops/ID                  journal of an attach in progress, or of one that died
//	RUN/ops/ID~detached         journal of a detach in progress, or of one that died
//	RUN/ops/ID~retired          journal of the cleanup after a container that is gone, or of TakeDown
//	RUN/live/ID                 journal that undoes a complete attachment
//	RUN/shared/KEY/             a resource of several attachments, and its users
//	RUN/claims/                 addresses that are in use
//	RUN/leases/ID.json          a DHCP lease
//	RUN/kept/ID.json            the KeeperReport of an attachment
type Store struct {
	*statedir.Dir
}

// OpenStore returns the store in a state directory. An empty dir means that of the
// environment variable CLEAT_STATE_DIR, or the default. OpenStore creates no files.
func OpenStore(dir string) (*Store, error) {
	d, err := statedir.Open(dir)
	return &Store{d}, err
}

func (s *Store) file(id string) string        { return s.Path("attachments", id+".json") }
func (s *Store) opJournal(id string) string   { return s.RunPath("ops", id) }
func (s *Store) liveJournal(id string) string { return s.RunPath("live", id) }
func (s *Store) leasePath(id string) string   { return s.RunPath("leases", id+".json") }
func (s *Store) sharedDir(key string) string  { return s.RunPath("shared", fileName(key)) }

// The suffix of a journal in RUN/ops says what happens to the attachment file. No id ends
// like this.
const (
	detached = "~detached" // it is removed
	retired  = "~retired"  // it stays
)

// operationOn returns the path of the journal of an operation on an attachment; "" if there is
// none.
func (s *Store) operationOn(id string) string {
	for _, suffix := range []string{"", detached, retired} {
		if _, err := os.Lstat(s.opJournal(id) + suffix); err == nil {
			return s.opJournal(id) + suffix
		}
	}
	return ""
}

// prepare creates the directories and removes the files of earlier boots.
func (s *Store) prepare() error {
	return s.Prepare([]string{"attachments"}, []string{"live", "shared", "claims", "leases", "ops"})
}

// lock waits for the lock on the state directory. An operation holds it while it repairs what
// others left and creates or takes over its journal. A complete attachment is retired or changed
// only with the lock held.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	return statedir.Lock(ctx, s.Path())
}

// Attachment returns the attachment with this id. The error is fs.ErrNotExist if there is
// none.
func (s *Store) Attachment(id string) (*Attachment, error) { return readAttachment(s.file(id)) }

func readAttachment(path string) (*Attachment, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read attachment: %w", err)
	}
	var a Attachment
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, fmt.Errorf("read attachment %s: %w", path, err)
	}
	switch id, _ := AttachmentID(filepath.Base(path)); {
	case a.Version > attachmentVersion:
		return nil, fmt.Errorf("read attachment %s: version %d needs a later cleat", path, a.Version)
	case a.ID != id:
		return nil, fmt.Errorf("read attachment %s: it is attachment %q", path, a.ID)
	}
	return &a, nil
}

// lastKnown returns the attachment with this id as its file or, if that is unreadable, its
// journal has it; nil if neither does.
func (s *Store) lastKnown(id string) *Attachment {
	if a, err := s.Attachment(id); err == nil {
		return a
	}
	for _, path := range []string{s.liveJournal(id), s.opJournal(id)} {
		if all, _ := readJournal(path); all.Attachment != nil { // the first record is enough
			return all.Attachment
		}
	}
	return nil
}

// AttachmentID returns the id of the attachment whose file in STATE/attachments has this
// name. It reports whether it is such a file.
func AttachmentID(name string) (id string, ok bool) { return strings.CutSuffix(name, ".json") }

// Attachments returns all attachments, sorted by id. Files that can't be read are an error
// beside the others; where a journal still knows the attachment, it is included.
func (s *Store) Attachments() ([]*Attachment, error) {
	names, err := filepath.Glob(s.Path("attachments", "*.json"))
	if err != nil {
		return nil, fmt.Errorf("list attachments: %w", err)
	}
	slices.Sort(names)
	var all []*Attachment
	var errs []error
	for _, name := range names {
		a, err := readAttachment(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // just detached
		}
		if err != nil {
			errs = append(errs, err)
			id, _ := AttachmentID(filepath.Base(name))
			a = s.lastKnown(id)
		}
		if a != nil {
			all = append(all, a)
		}
	}
	return all, errors.Join(errs...)
}

// AttachmentsOf returns the attachments of one container, sorted by id. It reads the files of
// no others, except of containers whose names begin like this one's and a dot.
func (s *Store) AttachmentsOf(c Container) ([]*Attachment, error) {
	paths, err := filepath.Glob(s.Path("attachments", c.FileName()+".*.json"))
	if err != nil {
		return nil, fmt.Errorf("list attachments of %s: %w", c.ShortName(), err)
	}
	var all []*Attachment
	for _, path := range paths {
		a, err := readAttachment(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case a.Container.FileName() == c.FileName():
			all = append(all, a)
		}
	}
	return all, nil
}

// withOperations adds the attachments that only the journal of an operation knows: one that is
// being made has no file yet, and one that is being detached may have none any more. A journal
// without a record is ignored, because nothing has been done yet.
func (s *Store) withOperations(all []*Attachment) ([]*Attachment, error) {
	ops, err := os.ReadDir(s.RunPath("ops"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return all, fmt.Errorf("list operations: %w", err)
	}
	for _, op := range ops {
		id, _, _ := strings.Cut(op.Name(), "~")
		if slices.ContainsFunc(all, func(a *Attachment) bool { return a.ID == id }) {
			continue
		}
		if r, _ := readJournal(s.opJournal(op.Name())); r.Attachment != nil {
			all = append(all, r.Attachment)
		}
	}
	slices.SortFunc(all, func(a, b *Attachment) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// KeeperReport is what a keeper did last about an attachment. It is lost when the machine
// restarts.
type KeeperReport struct {
	Action       string    `json:"did,omitempty"` // "": none yet
	ActionTime   time.Time `json:"at,omitzero"`
	Error        string    `json:"error,omitempty"`
	FailingSince time.Time `json:"since,omitzero"`
	Failures     int       `json:"failures,omitempty"` // since FailingSince
	Next         time.Time `json:"next,omitzero"`      // time of the next attempt; zero: when something changes
}

func (s *Store) reportPath(id string) string { return s.RunPath("kept", id+".json") }

// SaveKeeperReport replaces the report about an attachment.
func (s *Store) SaveKeeperReport(id string, r KeeperReport) error {
	return statedir.WriteJSON(s.reportPath(id), r)
}

// KeeperReport returns the report about an attachment; nil if there is none.
func (s *Store) KeeperReport(id string) (*KeeperReport, error) {
	return statedir.ReadJSON[KeeperReport](s.reportPath(id))
}

// DeleteKeeperReport removes the report about an attachment if there is one.
func (s *Store) DeleteKeeperReport(id string) error { return statedir.Remove(s.reportPath(id)) }

// idOf returns the id of an attachment, which names its files. Two links never have the same
// id: no engine's name has a dot, so the first dot ends it, and the dots in a link's name are
// escaped, so the last one precedes it.
func idOf(c Container, ifname string) string {
	return c.FileName() + "." + strings.ReplaceAll(fileName(ifname), ".", "%2E")
}

// fileName returns name with every byte that is unusual in file names written as %XX.
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
