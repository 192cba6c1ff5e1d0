package statedir

import (
	"errors"
	"os"
)

// WriteSecret replaces a file that only root may read. After a power failure it has the old or the new content.
func WriteSecret(path string, text []byte) error {
	temp := path + ".new"
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
