package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const resolvConf = "/etc/resolv.conf"

// hostResolvers are the sockets of programs on the host that resolve names for everybody who
// can open them. They would bypass the network's resolver and its rules. With a plain file in
// their place the C library falls back to resolv.conf.
var hostResolvers = []string{
	"/run/systemd/resolve/io.systemd.Resolve", // nss-resolve(8)
	"/run/nscd/socket",
	"/var/run/nscd/socket",
}

// mountResolvConf mounts a file over the target of /etc/resolv.conf, and over hostResolvers,
// in the process's own mount namespace. The file is on a tmpfs that no other process sees and
// that disappears with the namespace. Later mounts of the host still propagate into this
// namespace. Ours do not propagate out, since its user namespace is new
// (mount_namespaces(7)).
//
// The tmpfs is first mounted over the directory of resolv.conf itself, to have a file to bind
// from. The targets below are reached by descriptors that were opened before.
func mountResolvConf(text []byte) error {
	file, err := filepath.EvalSymlinks(resolvConf)
	if err != nil {
		return err
	}
	var targets []int
	defer func() { closeAll(targets) }()
	for _, path := range append([]string{file}, hostResolvers...) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil && (path == file || !errors.Is(err, unix.ENOENT)) {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		if err == nil {
			targets = append(targets, fd)
		}
	}
	dir := filepath.Dir(file)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	if err = os.WriteFile(file, text, 0o644); err == nil {
		err = bindMount(file, targets)
	}
	return errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
}

func bindMount(file string, targets []int) error {
	for _, fd := range targets {
		if err := unix.Mount(file, "/proc/self/fd/"+strconv.Itoa(fd), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over a resolver's file: %w", err)
		}
	}
	return nil
}
