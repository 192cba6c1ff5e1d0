package attach

import (
	"cleat/link"

	"golang.org/x/sys/unix"
)

// Sign shows that the namespace of an attachment's link exists. NamespaceGone, which reads a journal, need not
// be asked again as long as the sign is there. The zero value is never there.
type Sign struct {
	path     string // of the namespace's file, as it was
	dev, ino uint64
	changed  unix.Timespec
	index    int // or of the link's end on the host, which goes with the other end
}

// signAt returns the sign that is a namespace's file.
func signAt(path string) Sign {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return Sign{}
	}
	return Sign{path: path, dev: st.Dev, ino: st.Ino, changed: st.Ctim}
}

// IsThere reports whether the sign is still there. host lists the host's links; without it, a link is no sign.
func (s Sign) IsThere(host *link.Listing) bool {
	if s.index != 0 {
		if host == nil {
			return false
		}
		has, err := host.Has(s.index)
		return err == nil && has
	}
	// Another namespace gets the inode number of one that is gone, but at another time.
	return s.path != "" && signAt(s.path) == s
}
