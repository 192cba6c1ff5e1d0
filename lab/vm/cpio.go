package vm

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// File is one file of the guest's root file system.
type File struct {
	Path   string      // absolute, in the guest
	Mode   fs.FileMode // permissions; 0: those of Source, or 0644
	Source string      // a file on this machine; "": Data
	Data   []byte
}

// Types of files as in st_mode.
const (
	modeDir     = 0o040000
	modeRegular = 0o100000
	modeLink    = 0o120000
)

// cpioWriter writes an archive in the "newc" format, which the kernel unpacks as its
// first root file system. It adds the parent directories of files.
type cpioWriter struct {
	w    io.Writer
	ino  int
	n    int64 // bytes written, for alignment
	dirs map[string]bool
	err  error
}

func newCpioWriter(w io.Writer) *cpioWriter {
	return &cpioWriter{w: w, dirs: map[string]bool{"/": true, ".": true}}
}

// dir adds a directory and its parents, unless they exist.
func (c *cpioWriter) dir(name string) {
	name = path.Clean("/" + name)
	if c.dirs[name] {
		return
	}
	c.dirs[name] = true
	c.dir(path.Dir(name))
	c.entry(name, modeDir|0o755, 0, strings.NewReader(""))
}

// file adds a regular file of size bytes.
func (c *cpioWriter) file(name string, mode fs.FileMode, size int64, body io.Reader) {
	if mode == 0 {
		mode = 0o644
	}
	c.dir(path.Dir(path.Clean("/" + name)))
	c.entry(name, modeRegular|uint32(mode.Perm()), size, body)
}

// link adds a symbolic link.
func (c *cpioWriter) link(name, target string) {
	c.dir(path.Dir(path.Clean("/" + name)))
	c.entry(name, modeLink|0o777, int64(len(target)), strings.NewReader(target))
}

// close writes the trailer and returns the first error of any call.
func (c *cpioWriter) close() error {
	c.entry("TRAILER!!!", 0, 0, strings.NewReader(""))
	return c.err
}

// entry writes a header, a name and a body, each padded to four bytes. Link counts are 1
// and owners root: the kernel ignores others when it unpacks.
func (c *cpioWriter) entry(name string, mode uint32, size int64, body io.Reader) {
	if c.err != nil {
		return
	}
	if size > 1<<32-1 {
		c.err = fmt.Errorf("add %s to archive: %d bytes do not fit the format", name, size)
		return
	}
	name = strings.TrimPrefix(name, "/")
	c.ino++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.ino, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	c.copy(name, int64(len(header)+len(name)+1), strings.NewReader(header+name+"\x00"))
	c.pad()
	c.copy(name, size, body)
	c.pad()
}

// copy writes exactly n bytes.
func (c *cpioWriter) copy(name string, n int64, r io.Reader) {
	if c.err != nil {
		return
	}
	m, err := io.CopyN(c.w, r, n)
	c.n += m
	if err != nil {
		c.err = fmt.Errorf("add %s to archive: %w", name, err)
	}
}

func (c *cpioWriter) pad() {
	if n := -c.n & 3; n != 0 {
		c.copy("padding", n, strings.NewReader("\x00\x00\x00"))
	}
}
