package sys

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// ProgramPages are the read-only mappings of the running program's file: code and
// constants.
type ProgramPages []pageRange

type pageRange struct{ start, end uintptr }

// FindProgramPages reads /proc/self/maps.
func FindProgramPages() (ProgramPages, error) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("find pages of the program: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, fmt.Errorf("find pages of the program: %w", err)
	}
	return programPages(maps, exe), nil
}

// programPages returns the mappings of path that are not writable, from lines "START-END
// PERM OFFSET DEV INODE PATH".
func programPages(maps []byte, path string) ProgramPages {
	var all ProgramPages
	for line := range bytes.Lines(maps) {
		var r pageRange
		var perm string
		if n, err := fmt.Sscanf(string(line), "%x-%x %s", &r.start, &r.end, &perm); n != 3 || err != nil {
			continue
		}
		if bytes.HasSuffix(bytes.TrimRight(line, "\n"), []byte(" "+path)) && len(perm) == 4 && perm[1] != 'w' {
			all = append(all, r)
		}
	}
	return all
}

// Release drops the pages from the process's resident memory. Starting up touches most of
// a program once. Pages that are needed again come back from the page cache, sixteen per
// fault.
func (p ProgramPages) Release() error {
	for _, r := range p {
		// The range was mapped when it was found, and a program's own mappings stay.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release pages of the program: %w", errno)
		}
	}
	return nil
}

// ReleaseEvery gives memory back at intervals until ctx ends: the pages, and what is free of the Go
// heap, which it also keeps smaller than usual. It is for services that idle for weeks.
func (p ProgramPages) ReleaseEvery(ctx context.Context, interval time.Duration) {
	debug.SetGCPercent(gcPercent)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			debug.FreeOSMemory()
			_ = p.Release() // a failure leaves the pages there
		}
	}
}

// gcPercent is how much the heap of a service may grow until it is collected. With 1,000 containers, a
// keeper's live objects are 3 MB, spread over 8 MB of memory instead of 10.
const gcPercent = 40
