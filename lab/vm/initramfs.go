package vm

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

//go:embed init.sh
var scripts embed.FS

// initramfs writes the guest's root file system: the userland, the modules with their
// dependencies and indexes, the kernel's configuration, the caller's files and /init.
func initramfs(w io.Writer, cfg Config) error {
	buf := bufio.NewWriterSize(w, 1<<20)
	c := newCpioWriter(buf)
	for _, d := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/etc"} {
		c.dir(d)
	}
	if err := c.tree(cfg.Userland); err != nil {
		return err
	}
	mods, err := c.modules(cfg.Kernel, slices.Concat(guestModules, cfg.Modules, cfg.Load))
	if err != nil {
		return err
	}
	if err := c.copyFile("/boot/config-"+cfg.Kernel.Release, 0, cfg.Kernel.Config); err != nil {
		return err
	}
	script, err := initScript(cfg, mods)
	if err != nil {
		return err
	}
	c.file("/init", 0o755, int64(len(script)), bytes.NewReader(script))
	// The kernel runs this program to load a module.
	c.link("/sbin/modprobe", "/bin/busybox")
	for _, f := range cfg.Files {
		if err := c.add(f); err != nil {
			return err
		}
	}
	if err := c.close(); err != nil {
		return err
	}
	return buf.Flush()
}

// initScript returns the first program of the guest. mods are the modules that can be
// loaded.
func initScript(cfg Config, mods []string) ([]byte, error) {
	t, err := template.New("init.sh").Funcs(template.FuncMap{"quote": shellQuote}).ParseFS(scripts, "init.sh")
	if err != nil {
		return nil, err
	}
	var load []string
	for _, m := range cfg.Load {
		if slices.Contains(mods, moduleName(m)) {
			load = append(load, m)
		}
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]any{"Modules": load, "Env": cfg.Env, "Command": cfg.Command, "Last": statusLine})
	return b.Bytes(), err
}

// shellQuote quotes a string as one word of the shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// add adds one of the caller's files.
func (c *cpioWriter) add(f File) error {
	if f.Source != "" {
		return c.copyFile(f.Path, f.Mode, f.Source)
	}
	c.file(f.Path, f.Mode, int64(len(f.Data)), bytes.NewReader(f.Data))
	return nil
}

// copyFile adds a file of this machine. Mode 0 is the file's own.
func (c *cpioWriter) copyFile(name string, mode fs.FileMode, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if mode == 0 {
		mode = info.Mode()
	}
	c.file(name, mode, info.Size(), f)
	return nil
}

// tree adds the regular files below dir at the same paths.
func (c *cpioWriter) tree(dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		return c.copyFile("/"+rel, 0, p)
	})
}

// modules adds modules with their dependencies, and depmod's indexes. The indexes are of
// the whole tree: an indexed but absent module fails to load, like an unindexed one. It
// returns the names of the added modules.
func (c *cpioWriter) modules(k Kernel, patterns []string) ([]string, error) {
	m, err := readModules(k.Modules)
	if err != nil {
		return nil, err
	}
	names := m.closure(patterns)
	to := path.Join("/lib/modules", k.Release)
	for _, n := range names {
		p := m.path[n]
		if err := c.copyFile(path.Join(to, p), 0, filepath.Join(k.Modules, p)); err != nil {
			return nil, fmt.Errorf("add module %s: %w", n, err)
		}
	}
	for _, index := range []string{"modules.dep", "modules.alias", "modules.symbols", "modules.softdep"} {
		err := c.copyFile(path.Join(to, index), 0, filepath.Join(k.Modules, index))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return names, nil
}
