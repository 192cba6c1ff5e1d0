package host

import (
	"context"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"cleat/internal/program"
)

// programs are those whose versions are recorded, if they are installed.
var programs = []string{"iperf3", "iperf", "pasta", "slirp4netns", "ovs-vsctl", "ovs-vswitchd", "docker", "podman", "apptainer", "nft", "iptables", "ip",
	"netavark", "aardvark-dns", "cni/portmap"}

// libraryDirs have programs that only others run.
var libraryDirs = map[string][]string{
	"netavark":     {"/usr/libexec/podman", "/usr/lib/podman"},
	"aardvark-dns": {"/usr/libexec/podman", "/usr/lib/podman"},
	"cni/portmap":  {"/usr/lib", "/opt", "/usr/libexec"},
}

// find returns the path of a program in the PATH or in its libraryDirs; "": it is not
// installed.
func find(name string) string {
	path, err := program.Find(name)
	for i := 0; err != nil && i < len(libraryDirs[name]); i++ {
		path, err = program.Find(libraryDirs[name][i] + "/" + name)
	}
	if err != nil {
		return ""
	}
	return path
}

// versionTimeout is enough for a program to print its version on a busy machine. docker takes
// 60 ms on a quiet one.
const versionTimeout = 3 * time.Second

// programVersions runs each installed program with --version.
func programVersions(ctx context.Context) map[string]string {
	out := map[string]string{"go": runtime.Version(), "cleat": "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok {
		out["cleat"] = info.Main.Version // of a tag, or with the commit (Go 1.24 and later)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, p := range programs {
		path := find(p)
		if path == "" {
			continue
		}
		all.Go(func() {
			if v := askVersion(ctx, path); v != "" {
				mu.Lock()
				defer mu.Unlock()
				out[p] = v
			}
		})
	}
	all.Wait()
	return out
}

// askVersion returns the first line that a program prints about itself. It ignores exit codes:
// iperf 2 exits 1 after --version.
func askVersion(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	flag := "--version"
	if strings.HasSuffix(path, "/ip") {
		flag = "-V"
	}
	cmd := exec.CommandContext(ctx, path, flag)
	cmd.WaitDelay = time.Second // in case a grandchild keeps the pipe open
	out, _ := cmd.CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.TrimSpace(line)
}
