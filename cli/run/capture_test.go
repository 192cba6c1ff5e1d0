package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A full disk leaves no empty file behind, which would refuse the next attempt.
func TestCaptureWithoutHeaderIsRemoved(t *testing.T) {
	f := &flags{pcap: filepath.Join(t.TempDir(), "capture")}
	capture, err := f.openCapture()
	if err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	// The kernel writes as much as fits, as on a disk that is nearly full.
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 10, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	_, err = capture.Write(make([]byte, 24))
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), f.pcap) {
		t.Errorf("write the header: %v, want EFBIG and the path", err)
	}
	if err := capture.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.pcap); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file still exists: %v", err)
	}
	if capture, err = f.openCapture(); err != nil {
		t.Fatal("second attempt:", err)
	}
	if _, err := capture.Write(make([]byte, 24)); err != nil {
		t.Fatal(err)
	}
	if err := capture.Close(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(f.pcap); err != nil || info.Size() != 24 {
		t.Errorf("the file with a header: %v, %v", info, err)
	}
}
