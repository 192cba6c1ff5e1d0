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

// hostResolvers are sockets of programs on the host that resolve names for
// everybody who can open them. They would answer past the network's own resolver
// and its rules; with a plain file in their place the C library falls back to
// resolv.conf.
var hostResolvers = []string{
	"/run/systemd/resolve/io.systemd.Resolve", // nss-resolve(8)
	"/run/nscd/socket",
	"/var/run/nscd/socket",
}

// mountResolvConf puts a file over /etc/resolv.conf, or over what that leads to,
// in the calling process' own mount namespace. The file is on a tmpfs that
// nobody else sees and that vanishes with the namespace. Mounts that the host
// makes later still arrive here; ours do not leave, since the user namespace is
// a new one (mount_namespaces(7)).
//
// To have a tmpfs to bind from, it is mounted over the file's own directory for
// a moment; what is below is reached by descriptors opened before.
func mountResolvConf(text []byte) error {
	target, err := filepath.EvalSymlinks(resolvConf)
	if err != nil {
		return err
	}
	var places []int
	defer func() { closeAll(places) }()
	for _, path := range append([]string{target}, hostResolvers...) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil && (path == target || !errors.Is(err, unix.ENOENT)) {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		if err == nil {
			places = append(places, fd)
		}
	}
	dir := filepath.Dir(target)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	if err = os.WriteFile(target, text, 0o644); err == nil {
		err = bindOver(target, places)
	}
	return errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
}

func bindOver(file string, places []int) error {
	for _, fd := range places {
		if err := unix.Mount(file, "/proc/self/fd/"+strconv.Itoa(fd), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over resolver's file: %w", err)
		}
	}
	return nil
}
