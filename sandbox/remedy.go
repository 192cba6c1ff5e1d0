package sandbox

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// userNSLimits are the settings by which a machine denies user namespaces, or rights in them,
// the most specific first.
var userNSLimits = []struct{ path, value, remedy string }{
	{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
		"sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
	{"/proc/sys/kernel/unprivileged_userns_clone", "0",
		"sudo sysctl kernel.unprivileged_userns_clone=1"},
	{"/proc/sys/user/max_user_namespaces", "0",
		"sudo sysctl user.max_user_namespaces=10000"},
	{"/proc/sys/user/max_net_namespaces", "0",
		"sudo sysctl user.max_net_namespaces=10000"},
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
		if b, err := os.ReadFile(l.path); err == nil && strings.TrimSpace(string(b)) == l.value {
			return l.remedy
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
