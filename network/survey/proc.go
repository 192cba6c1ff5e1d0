package survey

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"cleat/internal/procstat"
)

// process is what /proc/PID/stat says of a process.
type process struct {
	pid              int
	name             string
	kernelThread     bool
	startedAfterBoot time.Duration
}

// pfKthread is PF_KTHREAD (include/linux/sched.h).
const pfKthread = 0x00200000

func parseStat(pid int, text []byte) (process, bool) {
	const flagsField = 9
	stat, ok := procstat.Parse(text)
	if !ok {
		return process{}, false
	}
	p := process{pid: pid, name: stat.Name}
	if p.startedAfterBoot, ok = stat.Started(); !ok {
		return process{}, false
	}
	flags, _ := strconv.ParseUint(stat.Field(flagsField), 10, 64)
	p.kernelThread = flags&pfKthread != 0
	return p, true
}

// engines are the patterns of control groups that engines put containers in. The first group is
// the container's name or identifier.
var engines = sync.OnceValue(func() []engine {
	return []engine{
		{"docker", regexp.MustCompile(`(?m)/docker[-/]([0-9a-f]{64})(?:\.scope)?(?:/|$)`)},
		{"podman", regexp.MustCompile(`(?m)/libpod-([0-9a-f]{64})(?:\.scope)?(?:/|$)`)},
		{"containerd", regexp.MustCompile(`(?m)(?:/|cri-containerd-|nerdctl-)([0-9a-f]{64})(?:\.scope)?(?:/|$)`)},
		{"cri-o", regexp.MustCompile(`(?m)/crio-([0-9a-f]{64})(?:\.scope)?(?:/|$)`)},
		{"lxc", regexp.MustCompile(`(?m)/lxc(?:\.payload\.|/)([^/\n]+)`)},
		{"nspawn", regexp.MustCompile(`(?m)/machine\.slice/(?:machine-|systemd-nspawn@)([^/\n]+)\.(?:scope|service)`)},
	}
})

type engine struct {
	runtime string
	path    *regexp.Regexp
}

// shortID is how many characters of an identifier engines show.
const shortID = 12

// containerOf returns the engine and the container that the text of /proc/PID/cgroup names.
func containerOf(text string) (runtime, name string) {
	for _, e := range engines() {
		if m := e.path.FindStringSubmatch(text); m != nil {
			name = m[1]
			if len(name) == 64 {
				name = name[:shortID]
			}
			return e.runtime, name
		}
	}
	return "", ""
}

// bootTime returns btime of /proc/stat, the zero time if it can't be read.
func bootTime(proc string) time.Time {
	text, _ := os.ReadFile(filepath.Join(proc, "stat"))
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "btime "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
}

// nsID parses "net:[4026531840]".
func nsID(target string) (uint64, bool) {
	v, ok := strings.CutPrefix(target, "net:[")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(strings.TrimSuffix(v, "]"), 10, 64)
	return id, err == nil
}

// unescape undoes the octal escapes of /proc/self/mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
