package container

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cleat/internal/program"
)

// selfPath is where this program is in the image.
const selfPath = "/cleat"

// image is the name of the image.
const image = "cleat-bench"

// tree is the directory with the image's files.
func (r *Runtime) tree() string { return filepath.Join(r.dir, "image") }

// imageDirs are directories that engines mount on, or complain of if missing.
var imageDirs = []string{"dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp"}

// imageFiles are small files that engines want to find.
var imageFiles = map[string]string{
	"etc/passwd":      "root:x:0:0:root:/root:/cleat\n",
	"etc/group":       "root:x:0:\n",
	"etc/hosts":       "",
	"etc/resolv.conf": "",
}

// pack makes the image's files.
func (r *Runtime) pack() error {
	tree := r.tree()
	for _, dir := range append(imageDirs, r.cfg.Share...) {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			return fmt.Errorf("make an image: %w", err)
		}
	}
	for name, text := range imageFiles {
		if err := os.WriteFile(filepath.Join(tree, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("make an image: %w", err)
		}
	}
	self, err := r.cfg.Self, error(nil)
	if self == "" {
		self, err = os.Executable()
	}
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	programs := map[string]string{selfPath: self}
	for _, name := range r.cfg.Programs {
		if programs["/usr/bin/"+name], err = program.Find(name); err != nil {
			return err
		}
	}
	for to, from := range programs {
		if err := packProgram(tree, to, from); err != nil {
			return err
		}
	}
	return nil
}

// packProgram copies a program to its place, and its libraries to theirs.
func packProgram(tree, to, from string) error {
	if err := copyFile(filepath.Join(tree, to), from); err != nil {
		return err
	}
	// ldd fails for a program without libraries.
	said, _ := program.Command("ldd", from).Output()
	for _, library := range libraries(string(said)) {
		if err := copyFile(filepath.Join(tree, library), library); err != nil {
			return err
		}
	}
	return nil
}

// libraries are the files in ldd's answer: "libc.so.6 => /lib/… (0x…)", and the
// loader's "/lib64/… (0x…)".
func libraries(ldd string) []string {
	var paths []string
	for line := range strings.Lines(ldd) {
		words := strings.Fields(line)
		if len(words) >= 3 && words[1] == "=>" {
			words = words[2:]
		}
		if len(words) > 0 && strings.HasPrefix(words[0], "/") && !strings.HasSuffix(words[0], ":") {
			paths = append(paths, words[0])
		}
	}
	return paths
}

// copyFile copies what a path leads to, with the permission to run it.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("make an image: %w", err)
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("make an image: %w", err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("make an image: %w", err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("make an image: %w", err)
	}
	return nil
}

// archive writes the image's files as a tar archive, which engines import.
func archive(w io.Writer, tree string) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == tree {
			return err
		}
		return archiveOne(t, tree, path, d)
	})
	if err = errors.Join(err, t.Close()); err != nil {
		return fmt.Errorf("write an image: %w", err)
	}
	return nil
}

func archiveOne(t *tar.Writer, tree, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	if h.Name, err = filepath.Rel(tree, path); err != nil {
		return err
	}
	if err := t.WriteHeader(h); err != nil || d.IsDir() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, f)
	return err
}
