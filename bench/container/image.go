package container

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"cleat/internal/program"
)

// selfPath is this program's path in the image.
const selfPath = "/cleat"

// image is the name of the image, and a label of its containers.
const image = "cleat-bench"

func (r *Runtime) imageDir() string { return filepath.Join(r.dir, "image") }

// imageDirs are directories that engines mount on, or require.
var imageDirs = []string{"dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp"}

// imageFiles are small files that engines require.
var imageFiles = map[string]string{
	"etc/passwd":      "root:x:0:0:root:/root:/cleat\n",
	"etc/group":       "root:x:0:\n",
	"etc/hosts":       "",
	"etc/resolv.conf": "",
}

// buildImage makes the image's files.
func (r *Runtime) buildImage() error {
	to := r.imageDir()
	for _, dir := range append(imageDirs, r.cfg.Share...) {
		if err := os.MkdirAll(filepath.Join(to, dir), 0o755); err != nil {
			return err
		}
	}
	for name, text := range imageFiles {
		if err := os.WriteFile(filepath.Join(to, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	self, err := r.cfg.Self, error(nil)
	if self == "" {
		self, err = os.Executable()
	}
	programs := map[string]string{selfPath: self}
	for _, name := range r.cfg.Programs {
		if err == nil {
			programs["/usr/bin/"+name], err = program.Find(name)
		}
	}
	if err != nil {
		return err
	}
	for name, from := range programs {
		if err := copyProgram(to, name, from); err != nil {
			return err
		}
	}
	return nil
}

// copyProgram copies a program and its libraries into the directory to.
func copyProgram(to, name, from string) error {
	if err := copyFile(filepath.Join(to, name), from); err != nil {
		return err
	}
	output, _ := program.Command("ldd", from).Output() // fails for a static program
	for _, library := range libraries(string(output)) {
		if err := copyFile(filepath.Join(to, library), library); err != nil {
			return err
		}
	}
	return nil
}

// libraries returns the files in ldd's output: "libc.so.6 => /lib/… (0x…)", and the
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

// copyFile copies the file that a path leads to, and makes the copy executable.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// archive writes the image's files as a tar archive, which engines import.
func archive(w io.Writer, imageDir string) error {
	t := tar.NewWriter(w)
	if err := errors.Join(t.AddFS(os.DirFS(imageDir)), t.Close()); err != nil {
		return fmt.Errorf("write an image: %w", err)
	}
	return nil
}
