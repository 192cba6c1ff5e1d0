package find

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cleat/internal/procstat"

	"golang.org/x/sys/unix"
)

// machine is where containers are searched, and by which user.
type machine struct {
	root    string // prefix of every path; "" except in tests
	getenv  func(string) string
	uid     int
	timeout time.Duration // of one request

	// Replaced in tests:
	superuser int                                       // the uid that root's files and sockets have
	netOwners func(path string) (uids []int, err error) // see ownersOfNet

	once   sync.Once
	people []user
}

func (m *machine) path(name string) string { return m.root + name }

// glob lists the matches of a pattern in directories that only root or the kernel can
// change. Unreadable directories have no matches.
func (m *machine) glob(pattern string) []string {
	found, _ := filepath.Glob(m.path(pattern)) // the patterns are valid
	return found
}

// user is a line of passwd(5).
type user struct {
	name, home string
	uid        int
}

// firstPerson is the first uid of an ordinary user; system users have no containers.
const firstPerson = 1000 // login.defs(5), UID_MIN

// users returns the users whose engines may be asked: root and all ordinary users or, if
// the caller is not root, only the caller.
func (m *machine) users() []user {
	m.once.Do(func() { m.people = m.readUsers() })
	return m.people
}

func (m *machine) readUsers() []user {
	text, _ := m.readFile("/etc/passwd", 0)
	all := slices.DeleteFunc(parsePasswd(string(text)), func(u user) bool {
		return u.uid != m.uid && (m.uid != 0 || u.uid < firstPerson)
	})
	if home := m.getenv("HOME"); home != "" && !slices.ContainsFunc(all, func(u user) bool { return u.uid == m.uid }) {
		all = append(all, user{strconv.Itoa(m.uid), home, m.uid})
	}
	return all
}

func parsePasswd(text string) []user {
	var all []user
	for line := range strings.Lines(text) {
		words := strings.Split(strings.TrimSpace(line), ":")
		if len(words) < 7 {
			continue
		}
		if uid, err := strconv.Atoi(words[2]); err == nil {
			all = append(all, user{words[0], words[5], uid})
		}
	}
	return all
}

// userName returns a user's name for display; root's is "".
func (m *machine) userName(uid int) string {
	if uid == 0 {
		return ""
	}
	for _, u := range m.users() {
		if u.uid == uid {
			return u.name
		}
	}
	return strconv.Itoa(uid)
}

// runtimeDir returns the directory for the runtime files of a user's programs, or "" if
// unknown.
func (m *machine) runtimeDir() string {
	if dir := m.getenv("XDG_RUNTIME_DIR"); dir != "" || m.uid == 0 {
		return dir
	}
	return fmt.Sprintf("/run/user/%d", m.uid)
}

// ownedDir is a directory in which only its owner and root can create files.
type ownedDir struct {
	path  string
	owner int
}

// runtimeDirs returns the runtime directories of all users that the caller may examine.
// Only root creates those below /run/user, so each belongs to the user whose uid it has.
func (m *machine) runtimeDirs() []ownedDir {
	var all []ownedDir
	add := func(path string) {
		info, err := os.Stat(m.path(path))
		if err != nil || !info.IsDir() || slices.ContainsFunc(all, func(d ownedDir) bool { return d.path == path }) {
			return
		}
		all = append(all, ownedDir{path, m.ownerOf(info)})
	}
	if dir := m.runtimeDir(); dir != "" {
		add(dir)
	}
	if m.uid == 0 {
		for _, dir := range m.glob("/run/user/*") {
			add(strings.TrimPrefix(dir, m.root))
		}
	}
	return all
}

func (m *machine) procDir() string { return m.path("/proc") }

// procFile reads a file of a process. It returns "" on error.
func (m *machine) procFile(pid int, name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("%s/%d/%s", m.procDir(), pid, name))
	return string(text)
}

// comm returns the name of a process (proc(5)), or "" on error. It is read of every process there
// is, so it takes three system calls only.
func (m *machine) comm(pid int) string {
	fd, err := unix.Open(m.procDir()+"/"+strconv.Itoa(pid)+"/comm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var name [64]byte // workers of the kernel have up to 63 bytes
	n, err := unix.Read(fd, name[:])
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name[:n]))
}

func (m *machine) pids() ([]int, error) {
	dir, err := os.Open(m.procDir())
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, pid)
		}
	}
	return all, nil
}

// stat holds the fields of proc(5)'s stat that are used here.
type stat struct {
	comm   string
	state  byte   // field 3
	parent int    // field 4
	start  uint64 // field 22
}

// dead reports whether the process has no namespaces any more, such as a zombie.
func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// readStat reads a process's stat. The error wraps fs.ErrNotExist or unix.ESRCH if there
// is no such process.
func readStat(proc string, pid int) (stat, error) {
	path := fmt.Sprintf("%s/%d/stat", proc, pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return stat{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	s, err := parseStat(text)
	if err != nil {
		return stat{}, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

func parseStat(text []byte) (stat, error) {
	p, ok := procstat.Parse(text)
	if !ok {
		return stat{}, fmt.Errorf("no name in %q", text)
	}
	if p.Field(22) == "" {
		return stat{}, fmt.Errorf("too few fields in %q", text)
	}
	s := stat{comm: p.Name, state: p.Field(3)[0]}
	var errs [2]error
	s.parent, errs[0] = strconv.Atoi(p.Field(4))
	s.start, errs[1] = strconv.ParseUint(p.Field(22), 10, 64)
	return s, errors.Join(errs[:]...)
}

// status holds the fields of proc(5)'s status that are used here.
type status struct {
	uid   int      // real uid
	nspid []string // its ids in our PID namespace and in each below
	admin bool     // has CAP_SYS_ADMIN in its user namespace
}

// status reads a process's status. The uid is -1 if there is no such process.
func (m *machine) status(pid int) status { return parseStatus(m.procFile(pid, "status")) }

func parseStatus(text string) status {
	s := status{uid: -1}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		words := strings.Fields(value)
		switch {
		case key == "Uid" && len(words) > 0:
			if uid, err := strconv.Atoi(words[0]); err == nil {
				s.uid = uid
			}
		case key == "NSpid":
			s.nspid = words
		case key == "CapEff" && len(words) > 0:
			caps, err := strconv.ParseUint(words[0], 16, 64)
			s.admin = err == nil && caps>>unix.CAP_SYS_ADMIN&1 == 1
		}
	}
	return s
}

// nested reports whether the process is in a PID namespace below ours.
func (s status) nested() bool { return len(s.nspid) > 1 }

// first reports whether it is process 1 of a PID namespace below ours.
func (s status) first() bool { return s.nested() && s.nspid[len(s.nspid)-1] == "1" }

// netOf returns the inode number of a process's network namespace, or 0 if unknown.
func (m *machine) netOf(pid string) uint64 {
	link, _ := os.Readlink(m.path("/proc/" + pid + "/ns/net"))
	inside, found := strings.CutPrefix(link, "net:[")
	if !found {
		return 0
	}
	id, _ := strconv.ParseUint(strings.TrimSuffix(inside, "]"), 10, 64) // 0 if it is not a number
	return id
}

func (m *machine) hostNet() uint64 {
	if id := m.netOf("1"); id != 0 {
		return id
	}
	return m.netOf("self")
}

// commandLine returns a process's command line. A title that the process has set is one
// word.
func (m *machine) commandLine(pid int) []string {
	return parseCommandLine(m.procFile(pid, "cmdline"))
}

// parseCommandLine returns at least one word, which may be empty.
func parseCommandLine(text string) []string {
	return strings.Split(strings.TrimRight(text, "\x00 "), "\x00")
}

// inGroup reports whether a process with this /proc/PID/cgroup is in a container's
// control group. The group is named after the id, as by cgroupfs drivers, or
// "docker-ID.scope", as by systemd, in any hierarchy and at any depth (cgroups(7)).
func inGroup(cgroup, id string) bool {
	for line := range strings.Lines(cgroup) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), "/")
		for part := range strings.SplitSeq(path, "/") {
			if part = strings.TrimSuffix(part, ".scope"); part == id || strings.HasSuffix(part, "-"+id) {
				return true
			}
		}
	}
	return false
}
