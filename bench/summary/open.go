package summary

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Bounds of the files of a result directory, which anybody may have made. Decoded results take
// up to ten times the memory of their text.
const (
	maxSamplesBytes     = 256 << 20
	maxSummaryBytes     = 16 << 20
	maxEnvironmentBytes = 4 << 20
	maxLineBytes        = 1 << 20 // of samples; one has 2 KB, most of it a histogram
	maxSamples          = 1 << 18 // a day of measurements of a third of a second
)

// errTooLarge is returned for a file, or a part of one, that is larger than results are.
var errTooLarge = errors.New("larger than results are")

// open opens a regular file of at most limit bytes. Reading fails with errTooLarge if the file
// has grown beyond the limit meanwhile. Unless links is set, the file must not be a symbolic
// link: its target, any file of the user's, would become a part of the report.
func open(file string, limit int64, links bool) (io.ReadCloser, error) {
	stat, flags := os.Stat, 0
	if !links {
		stat, flags = os.Lstat, unix.O_NOFOLLOW
	}
	info, err := stat(file)
	if err == nil {
		err = checkFile(info, limit)
	}
	if err != nil {
		return nil, nameFile(file, err)
	}
	// The file may have been replaced since: don't block on a pipe, and check again.
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = checkFile(info, limit)
	}
	if err != nil {
		f.Close()
		return nil, nameFile(file, err)
	}
	return &boundedFile{f: f, left: limit}, nil
}

// nameFile adds the file's name to err, unless it is an error of package os and has it.
func nameFile(file string, err error) error {
	if errors.As(err, new(*fs.PathError)) {
		return err
	}
	return fmt.Errorf("read %q: %w", file, err)
}

// checkFile returns why a file can't hold results, or nil.
func checkFile(info fs.FileInfo, limit int64) error {
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return errors.New("it is a symbolic link; copy the file itself there")
	case mode.IsDir():
		return errors.New("it is a directory")
	case !mode.IsRegular():
		return errors.New("it is not a regular file")
	case info.Size() > limit:
		return fmt.Errorf("%w: %d bytes, at most %d can be read", errTooLarge, info.Size(), limit)
	}
	return nil
}

// boundedFile is a file of which at most left bytes can be read.
type boundedFile struct {
	f    *os.File
	left int64
}

func (b *boundedFile) Read(p []byte) (int, error) {
	n, err := b.f.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

func (b *boundedFile) Close() error { return b.f.Close() }
