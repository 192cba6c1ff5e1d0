package container

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// privateMounts is a mount namespace with the lab's files, in which engines' writes
// outside the directories given to them have no effect: sockets of containerd's shims and
// state of crun below /run, Docker's key below /etc, containerd's plugins below /opt,
// Podman's caches below /var. It also hides a running containerd, which dockerd would
// use, and the control groups of version 2 beside those of version 1, with which crun
// refuses to work.
//
// A process holds the namespace. It ends at the end of its standard input, and the mounts
// end with it.
type privateMounts struct {
	holder *exec.Cmd
	stdin  io.Closer
}

// mountScript is what the holder runs; $1 is the directory for writes. resolv.conf may be
// a link into /run, and engines fail if it leads nowhere, so it and the hosts file are
// empty files. They are made in the overlay's upper directory before it is mounted:
// whatever fails, nothing is written to the machine's own files.
const mountScript = `set -e
mount -n -t tmpfs -o mode=755 cleat /run
for d in etc opt var; do
	[ -d /$d ] || continue
	mkdir -p "$1/$d/upper" "$1/$d/work"
	if [ $d = etc ]; then
		: >"$1/etc/upper/resolv.conf"
		: >"$1/etc/upper/hosts"
	fi
	mount -n -t overlay -o lowerdir=/$d,upperdir="$1/$d/upper",workdir="$1/$d/work" cleat /$d
done
if grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts; then
	mount -n -t tmpfs cleat /sys/fs/cgroup/unified
fi
echo ready
exec cat`

func newPrivateMounts(writes string) (*privateMounts, error) {
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", mountScript, "sh", writes)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make private mounts: %w", err)
	}
	m := &privateMounts{holder: cmd, stdin: in}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		m.close()
		return nil, fmt.Errorf("make private mounts: %s", strings.Join(strings.Fields(stderr.String()), " "))
	}
	return m, nil
}

// members returns the processes in the namespace besides the holder. Containers have
// namespaces of their own.
func (m *privateMounts) members() []int {
	own := func(pid string) string {
		ns, _ := os.Readlink("/proc/" + pid + "/ns/mnt") // "": it has ended
		return ns
	}
	holder := strconv.Itoa(m.holder.Process.Pid)
	here := own(holder)
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && e.Name() != holder && here != "" && own(e.Name()) == here {
			found = append(found, pid)
		}
	}
	return found
}

// An engine may still work this long after its containers have ended.
const (
	leavePoll    = 5 * time.Millisecond
	leaveTimeout = 10 * time.Second // Podman's clean-up, on a busy machine
)

// close waits until all processes in the namespace have ended, and releases it. It
// returns the processes that it waited for.
func (m *privateMounts) close() (gone []int) {
	for deadline := time.Now().Add(leaveTimeout); ; time.Sleep(leavePoll) {
		still := m.members()
		for _, pid := range still {
			if !slices.Contains(gone, pid) {
				gone = append(gone, pid)
			}
			if time.Now().After(deadline) {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		if len(still) == 0 {
			break
		}
	}
	m.stdin.Close()
	m.holder.Wait() // its exit status means nothing
	return gone
}
