package mptcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
)

// netInode matches the name of a network namespace in /proc.
var netInode = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`net:\[(\d+)\]`)
})

// initPIDs is the initial PID namespace (PROC_PID_INIT_INO, include/uapi/linux/nsfs.h).
const initPIDs = "pid:[4026531836]"

// sweep removes the state files of network namespaces that no longer exist, if that can
// be determined. Writers of such files hold the lock, so there are none now, and they are
// in their namespace or hold it open, so it is found. Unreadable files are left for the
// next time.
func (f *file) sweep(alive func() (map[uint64]bool, error)) {
	names, err := filepath.Glob(filepath.Join(filepath.Dir(f.path), "mptcp-*.json"))
	if err != nil || len(names) == 0 {
		return
	}
	there, err := alive()
	if err != nil {
		return
	}
	for _, name := range names {
		var s State
		b, err := os.ReadFile(name)
		if err != nil || json.Unmarshal(b, &s) != nil || name == f.path {
			continue
		}
		if s.Boot == f.boot && (s.Inode == 0 || there[s.Inode]) {
			continue
		}
		_ = os.Remove(name) // the next sweep will try again
	}
}

// namespaces returns the inode numbers of all network namespaces that a process is in,
// holds open or has mounted. It returns an error if there may be others.
func namespaces() (map[uint64]bool, error) {
	if pids, err := os.Readlink("/proc/self/ns/pid"); err != nil || pids != initPIDs {
		return nil, fmt.Errorf("list network namespaces: processes of other PID namespaces are not visible")
	}
	return namespacesBy("/proc")
}

func namespacesBy(proc string) (map[uint64]bool, error) {
	all := map[uint64]bool{}
	if _, err := os.Readlink(proc + "/1/ns/net"); err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err) // hidepid, or missing permission
	}
	processes, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		if err := namespacesOf(filepath.Join(proc, p.Name()), all); errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("list network namespaces: %w", err)
		}
	}
	return all, nil
}

// namespacesOf adds the namespaces of one process: of its threads, its open files and its
// mounts. An error may mean that the process has ended.
func namespacesOf(process string, all map[uint64]bool) error {
	note := func(text string) {
		for _, m := range netInode().FindAllStringSubmatch(text, -1) {
			if n, err := strconv.ParseUint(m[1], 10, 64); err == nil {
				all[n] = true
			}
		}
	}
	mounts, first := os.ReadFile(process + "/mountinfo")
	note(string(mounts))
	for dir, below := range map[string]string{"task": "ns/net", "fd": ""} {
		entries, err := os.ReadDir(filepath.Join(process, dir))
		first = errors.Join(first, err)
		for _, e := range entries {
			to, err := os.Readlink(filepath.Join(process, dir, e.Name(), below))
			first = errors.Join(first, err)
			note(to)
		}
	}
	return first
}
