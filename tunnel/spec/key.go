package spec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"cleat/tunnel/secure"
)

// Key is what encrypts a tunnel.
type Key struct {
	File    string // where the private key is
	Private secure.PrivateKey
	Peer    secure.PublicKey // of the other end
}

// ErrKeyMode is in the error for a key file that others may read.
var ErrKeyMode = errors.New("group or others may read it")

// wantKey says what a key looks like.
const wantKey = "32 bytes in base64, which are 44 characters"

// Opener opens a file and tells its mode, of the very file that it opened.
type Opener func(path string) (io.ReadCloser, fs.FileMode, error)

// maxKeyFile is in bytes: a key, and some space around it.
const maxKeyFile = 1024

// ReadKey reads a private key from a file, with or without space around it.
// ErrKeyMode is in the error when others may read it, secure.ErrKey when it has
// no key; any other is open's. No error repeats what is in the file.
func ReadKey(path string, open Opener) (secure.PrivateKey, error) {
	f, mode, err := open(path)
	if err != nil {
		return secure.PrivateKey{}, fmt.Errorf("read key: %w", err)
	}
	defer f.Close()
	switch {
	case !mode.IsRegular():
		return secure.PrivateKey{}, fmt.Errorf("read key %s: not a regular file: %w", path, secure.ErrKey)
	case mode.Perm()&0o077 != 0:
		return secure.PrivateKey{}, fmt.Errorf("read key %s: mode %04o: %w", path, mode.Perm(), ErrKeyMode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	defer clear(text)
	if err != nil {
		return secure.PrivateKey{}, fmt.Errorf("read key %s: %w", path, err)
	}
	key, err := secure.ParsePrivateKey(string(bytes.TrimSpace(text)))
	if err != nil {
		return secure.PrivateKey{}, fmt.Errorf("read key %s: %w", path, err)
	}
	return key, nil
}

// KeyHint is what to type where a key file could not be read or made, "" where
// err says enough.
func KeyHint(path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "make one: cleat tunnel key " + shellWord(path)
	case errors.Is(err, fs.ErrExist):
		return "a key is never overwritten; its public half: cleat tunnel key --public " + shellWord(path)
	case errors.Is(err, ErrKeyMode):
		return "chmod go= " + shellWord(path)
	}
	return ""
}

// shellWord is a word as a shell takes it.
func shellWord(word string) string {
	if nameText().MatchString(strings.ReplaceAll(word, "/", "")) && !strings.HasPrefix(word, "-") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
