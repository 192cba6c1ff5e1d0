package run

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// onFullDisk calls f while no file may become longer than so many bytes. The kernel writes
// as much as fits, as on a disk that is nearly full.
func onFullDisk(t *testing.T, bytes uint64, f func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	f()
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
}

// testCapture opens a capture that logs to the buffer.
func testCapture(t *testing.T) (*flags, *captureFile, *bytes.Buffer) {
	t.Helper()
	f := &flags{pcap: filepath.Join(t.TempDir(), "capture")}
	log := &bytes.Buffer{}
	capture, err := f.openCapture(slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return f, capture, log
}

// A full disk leaves no empty file behind, which would refuse the next attempt.
func TestCaptureWithoutHeaderIsRemoved(t *testing.T) {
	f, capture, _ := testCapture(t)
	var err error
	onFullDisk(t, 10, func() { _, err = capture.Write(make([]byte, 24)) })
	if !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), f.pcap) {
		t.Errorf("write the header: %v, want EFBIG and the path", err)
	}
	if err := capture.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.pcap); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file still exists: %v", err)
	}
	if capture, err = f.openCapture(nil); err != nil {
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

// A disk that fills up during a capture leaves a file of whole records, and a warning.
func TestCaptureEndsOnFullDisk(t *testing.T) {
	f, capture, log := testCapture(t)
	var err error
	onFullDisk(t, 150, func() {
		for range 3 {
			if _, err = capture.Write(make([]byte, 60)); err != nil {
				break
			}
		}
	})
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("%v, want EFBIG", err)
	}
	if err := capture.Close(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(f.pcap); err != nil || info.Size() != 120 {
		t.Errorf("%v, %v, want two records of 60 bytes", info, err)
	}
	if !strings.Contains(log.String(), "the capture ends here") || !strings.Contains(log.String(), f.pcap) {
		t.Errorf("the log has %q", log)
	}
}
