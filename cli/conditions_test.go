package cli

import (
	"os"
	"os/exec"
	"path/filepath"
)

// asUser is a script for stories. It runs a command as user 1234, with a /dev/net/tun in
// its own mount namespace that all users may open. It needs root.
const asUser = `#!/bin/sh
exec unshare --mount --propagation private sh -c '
	set -e
	dir=$(mktemp -d)
	mount -t tmpfs -o dev tmpfs "$dir"
	mknod "$dir/tun" c 10 200
	chmod 666 "$dir/tun"
	mount --bind "$dir/tun" /dev/net/tun
	umount --lazy "$dir"
	rmdir "$dir"
	exec setpriv --reuid 1234 --regid 1234 --clear-groups "$@"' as-user "$@"
`

// writeAsUser writes the script to the directory of the program.
func writeAsUser(dir string) error {
	return os.WriteFile(filepath.Join(dir, "as-user"), []byte(asUser), 0o755)
}

// canRun reports whether `cleat run` works here.
func canRun() bool {
	return exec.Command(filepath.Join(binDir, "cleat"), "run", "--", "true").Run() == nil
}

// canContain reports whether the ends of traffic can run in containers here. It tries
// Podman, which starts fastest.
func canContain() bool {
	dir, err := os.MkdirTemp("", "cleat-contain-")
	if err != nil {
		return false
	}
	defer os.RemoveAll(dir)
	return exec.Command(filepath.Join(binDir, "cleat"), "bench", "quick", "--only", "network=loopback,work=tcp", "--runtime", "podman",
		"--repeat", "1", "--duration", "10ms", "--quiet", "--out", filepath.Join(dir, "out")).Run() == nil
}

// canSupervise reports whether the seccomp tier works here.
func canSupervise() bool {
	return exec.Command(filepath.Join(binDir, "cleat"), "run", "--tier", "seccomp", "--", "true").Run() == nil
}

// canBeUser reports whether the script as-user works here.
func canBeUser() bool { return exec.Command(filepath.Join(binDir, "as-user"), "true").Run() == nil }
