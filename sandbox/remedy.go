package sandbox

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// userNSLimits are the sysctls by which a machine denies user namespaces, or rights in them, the
// most specific first, with the value that denies and one that does not.
var userNSLimits = []struct{ sysctl, denies, allows string }{
	{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"},
	{"kernel.unprivileged_userns_clone", "0", "1"},
	{"user.max_user_namespaces", "0", "10000"},
	{"user.max_net_namespaces", "0", "10000"},
}

// namespaceRemedy returns what to do if the kernel has denied new namespaces or rights in
// them, or "" if that is not known.
func namespaceRemedy(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return "sudo sysctl user.max_user_namespaces=10000 user.max_net_namespaces=10000"
	case errors.Is(err, unix.EINVAL):
		return "use a kernel with CONFIG_USER_NS and CONFIG_NET_NS"
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES):
		return ""
	}
	for _, l := range userNSLimits {
		b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(l.sysctl, ".", "/"))
		if err == nil && strings.TrimSpace(string(b)) == l.denies {
			return "sudo sysctl " + l.sysctl + "=" + l.allows
		}
	}
	if b, err := os.ReadFile("/proc/self/status"); err == nil && strings.Contains(string(b), "Seccomp:\t2") {
		return "start the container with --security-opt seccomp=unconfined"
	}
	return ""
}

// StartError explains an error of starting a command that Wrap or Attach prepared. If the
// kernel has denied new namespaces, the result is a *SetupError with a remedy. Other errors,
// and nil, are returned as they are.
func StartError(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == unix.EACCES {
		return err // EACCES is about the command's directory as a rule
	}
	remedy := namespaceRemedy(err)
	if remedy == "" {
		return err
	}
	return &SetupError{Step: "create user and network namespaces", Err: err, Remedy: remedy}
}
