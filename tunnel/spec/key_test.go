package spec

import (
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	"cleat/tunnel/secure"
)

// FuzzReadKey reads arbitrary key files: none that others may read is accepted, and no
// error contains its text.
func FuzzReadKey(f *testing.F) {
	f.Add(alicePrivate, uint32(0o600))
	f.Add(" \n"+alicePrivate+"\t\r\n", uint32(0o400))
	f.Add(alicePrivate, uint32(0o604))
	f.Add(alicePrivate, uint32(fs.ModeNamedPipe|0o600))
	f.Add(alicePrivate, uint32(fs.ModeSymlink|0o600))
	f.Add(alicePrivate[1:], uint32(0o600))
	f.Add(strings.Repeat("A", 5000), uint32(0o600))
	f.Add("\x1b[2J"+alicePrivate, uint32(0o600))
	f.Fuzz(func(t *testing.T, text string, mode uint32) {
		m := fs.FileMode(mode)
		read := 0
		key, err := ReadKey("x.key", func(string) (io.ReadCloser, fs.FileMode, error) {
			return io.NopCloser(&countingReader{strings.NewReader(text), &read}), m, nil
		})
		private := m.IsRegular() && m.Perm()&0o077 == 0
		if read > 0 && !private || read > maxKeyFileBytes {
			t.Errorf("%d bytes were read of a file of mode %v", read, m)
		}
		if err == nil {
			if !private || strings.TrimSpace(text) != key.Text() {
				t.Errorf("a key was read from %q, mode %v", text, m)
			}
			return
		}
		if !errors.Is(err, secure.ErrKey) && !errors.Is(err, ErrKeyMode) {
			t.Errorf("%v", err)
		}
		if secret := strings.TrimSpace(text); len(secret) > 20 && strings.Contains(err.Error(), secret) {
			t.Errorf("an error contains text of the file: %v", err)
		}
	})
}

type countingReader struct {
	io.Reader
	n *int
}

func (r *countingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	*r.n += n
	return n, err
}
