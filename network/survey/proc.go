package survey

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// process is what one line of /proc/PID/stat says.
type process struct {
	pid    int
	name   string
	kernel bool          // a thread of the kernel's
	began  time.Duration // after boot
}

// Fields of /proc/PID/stat behind the name, counted from 0 there (proc(5)).
const (
	statFlags = 6
	statBegan = 19
)

// kernelThread is PF_KTHREAD (include/linux/sched.h).
const kernelThread = 0x00200000

// userHZ is how many ticks of /proc/PID/stat make a second: USER_HZ, which is 100
// wherever Go runs on Linux (include/uapi/asm-generic/param.h).
const userHZ = 100

// parseStat reads the text of /proc/PID/stat. The name may hold anything, blanks
// and brackets too: it ends with the last bracket.
func parseStat(pid int, text []byte) (process, bool) {
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return process{}, false
	}
	fields := strings.Fields(string(text[to+1:]))
	if len(fields) <= statBegan {
		return process{}, false
	}
	p := process{pid: pid, name: string(text[from+1 : to])}
	flags, _ := strconv.ParseUint(fields[statFlags], 10, 64)
	p.kernel = flags&kernelThread != 0
	ticks, _ := strconv.ParseInt(fields[statBegan], 10, 64)
	p.began = time.Duration(ticks) * (time.Second / userHZ)
	return p, true
}

// engines are the forms of control group that engines put a container in, with
// its name or identifier.
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

// shownID is how much of an identifier engines show.
const shownID = 12

// containerOf reads /proc/PID/cgroup.
func containerOf(text string) (runtime, name string) {
	for _, e := range engines() {
		if m := e.path.FindStringSubmatch(text); m != nil {
			name = m[1]
			if len(name) == 64 {
				name = name[:shownID]
			}
			return e.runtime, name
		}
	}
	return "", ""
}

// bootTime reads btime of /proc/stat; the zero time when it can't.
func bootTime(proc string) time.Time {
	text, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return time.Time{}
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "btime "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
}

// nsID reads "net:[4026531840]".
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
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
