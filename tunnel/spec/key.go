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

// Key are the keys that encrypt a tunnel.
type Key struct {
	File    string // the private key's file
	Private secure.PrivateKey
	Peer    secure.PublicKey // public key of the other end
}

// ErrKeyMode is returned for a key file that group or others may read.
var ErrKeyMode = errors.New("group or others may read it")

const keySyntax = "32 bytes in base64 (44 characters)"

// Opener opens a file and returns the mode of the opened file.
type Opener func(path string) (io.ReadCloser, fs.FileMode, error)

// maxKeyFileBytes allows for a key and some space around it.
const maxKeyFileBytes = 1024

// ReadKey reads a private key from a file, ignoring surrounding space. It returns
// ErrKeyMode if group or others may read the file, secure.ErrKey if it has no key, and
// otherwise open's error. No error contains text of the file.
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
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFileBytes))
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

// KeyHint returns what to type if a key file could not be read or created, or "" if err
// says enough.
func KeyHint(path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "create one: cleat tunnel key " + shellQuote(path)
	case errors.Is(err, fs.ErrExist):
		return "existing keys are never overwritten; to print the public key: cleat tunnel key --public " + shellQuote(path)
	case errors.Is(err, ErrKeyMode):
		return "chmod go= " + shellQuote(path)
	}
	return ""
}

func shellQuote(word string) string {
	if namePattern().MatchString(strings.ReplaceAll(word, "/", "")) && !strings.HasPrefix(word, "-") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
