package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Refused is the error if the machine does not permit a lab.
type Refused struct {
	Flavour Flavour
	Reason  string // e.g. "sysctl user.max_user_namespaces is 0"
	Remedy  string // what to type
	Err     error
}

func (r *Refused) Error() string {
	return fmt.Sprintf("make a %s lab: %s: %v", r.Flavour, r.Reason, r.Err)
}

func (r *Refused) Unwrap() error { return r.Err }

// Hint returns the remedy.
func (r *Refused) Hint() string { return r.Remedy }

// chooseFlavour returns the flavour to use. It decides Auto by a trial.
func chooseFlavour(want Flavour) (Flavour, error) {
	switch want {
	case Root:
		if os.Geteuid() != 0 {
			return "", &Refused{Flavour: Root, Reason: "it needs root", Remedy: "run the command with sudo", Err: unix.EPERM}
		}
		return Root, nil
	case User, Auto:
		err := probeUserLab()
		if err == nil {
			return User, nil
		}
		if want == Auto && os.Geteuid() == 0 {
			return Root, nil
		}
		return "", refused(User, err)
	}
	return "", fmt.Errorf("unknown lab flavour %q: allowed: user, root", want)
}

// probeUserLab makes the namespaces of a user lab around a process that mounts /proc in
// them: some restrictions (AppArmor's) permit the namespace and then deny everything in
// it. The process is this program, which probeEnv makes exit early.
func probeUserLab() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), probeEnv+"=1")
	cmd.SysProcAttr = namespaces(User)
	cmd.SysProcAttr.Pdeathsig = 0 // this thread may end before the child does
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%s", strings.TrimSpace(string(out)))
	}
	return err
}

const probeEnv = "CLEAT_LAB_PROBE"

// AnswerProbe must be called first thing in main and in TestMain. If probeUserLab started
// this process, it prints the result and exits.
func AnswerProbe() {
	if os.Getenv(probeEnv) == "" {
		return
	}
	if err := mountProc(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// restrictions are sysctls that forbid user namespaces, the most specific first. Paths
// are relative to the root of the file system, for tests.
var restrictions = []struct {
	path, value    string
	reason, remedy string
}{
	{"proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
		"AppArmor restricts unprivileged user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns is 1)",
		"sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run the command with sudo"},
	{"proc/sys/kernel/unprivileged_userns_clone", "0",
		"sysctl kernel.unprivileged_userns_clone is 0",
		"sudo sysctl kernel.unprivileged_userns_clone=1, or run the command with sudo"},
	{"proc/sys/user/max_user_namespaces", "0",
		"sysctl user.max_user_namespaces is 0",
		"sudo sysctl user.max_user_namespaces=10000, or run the command with sudo"},
}

// refused finds the reason behind err.
func refused(f Flavour, err error) *Refused {
	r := &Refused{Flavour: f, Err: err}
	r.Reason, r.Remedy = reasonFor("/", err)
	if f == Root && r.Reason == "" {
		r.Reason, r.Remedy = "the kernel refused", "run it as root, outside of a container that drops CAP_SYS_ADMIN"
	}
	return r
}

func reasonFor(root string, err error) (reason, remedy string) {
	for _, l := range restrictions {
		if readTrimmed(root+l.path) == l.value {
			return l.reason, l.remedy
		}
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	_, missing := os.Stat(root + "proc/self/ns/user")
	switch {
	case errno == unix.EINVAL || missing != nil:
		return "the kernel has no user namespaces (CONFIG_USER_NS)", "run the command with sudo"
	case errno == unix.ENOSPC || errno == unix.EUSERS:
		return "the limit on user namespaces is reached (sysctl user.max_user_namespaces, or 32 levels deep)",
			"sudo sysctl user.max_user_namespaces=10000"
	case strings.Contains(readTrimmed(root+"proc/self/status"), "Seccomp:\t2"):
		return "a seccomp filter refuses user namespaces, as the default one of Docker and Podman does",
			"start the container with --security-opt seccomp=unconfined --cap-add SYS_ADMIN, or run outside of it"
	}
	return "the kernel refused a user namespace, or a mount in it (a chroot, or a container that masks /proc?)",
		"run the command with sudo, outside of a chroot or container"
}

func readTrimmed(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}
