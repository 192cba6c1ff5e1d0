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

// files is a mount namespace that shows the lab's files, in which what engines
// write outside of the directories given to them comes to nothing: sockets of
// containerd's shims and state of crun below /run, Docker's key below /etc,
// containerd's plugins below /opt, Podman's caches below /var. It also hides
// what they would find there: a running containerd, which dockerd would use; and
// the control groups of version 2 beside those of version 1, with which crun
// refuses to work.
//
// A process holds the namespace; it ends when its standard input does, and with
// it the mounts.
type files struct {
	holder *exec.Cmd
	hold   io.Closer
}

// makeFiles is what the holder does first; $1 is where writes go. The resolver's
// file may be a link into /run, and engines complain when it leads nowhere: it and
// the hosts file are empty ones. They are made where writes go, before that is
// mounted, so that whatever fails nothing of the machine's own is written.
const makeFiles = `set -e
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

func newFiles(writes string) (*files, error) {
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", makeFiles, "sh", writes)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make a private view of the files: %w", err)
	}
	f := &files{holder: cmd, hold: in}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		f.close()
		return nil, fmt.Errorf("make a private view of the files: %s", strings.Join(strings.Fields(complaint.String()), " "))
	}
	return f, nil
}

// enter is the beginning of a command line that is run there.
func (f *files) enter() []string {
	return []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", f.holder.Process.Pid), "--"}
}

// members are the processes that run there, beside the holder; not those in
// containers, which have namespaces of their own.
func (f *files) members() []int {
	own := func(pid string) string {
		ns, _ := os.Readlink("/proc/" + pid + "/ns/mnt") // "": it has ended
		return ns
	}
	holder := strconv.Itoa(f.holder.Process.Pid)
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

// How long what an engine does after its containers' ends may take.
const (
	leaveEvery = 5 * time.Millisecond
	leaveFor   = 10 * time.Second // Podman's clean-up, on a busy machine
)

// close lets the namespace go, once everything in it has ended. It returns the
// processes that it waited for.
func (f *files) close() (gone []int) {
	for deadline := time.Now().Add(leaveFor); ; time.Sleep(leaveEvery) {
		still := f.members()
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
	f.hold.Close()
	f.holder.Wait() // it has nothing to say any more
	return gone
}
