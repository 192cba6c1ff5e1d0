package host

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// UserNamespaces says whether an unprivileged user may create a network namespace.
type UserNamespaces struct {
	Max              string `json:"max_user_namespaces,omitempty"`
	MaxNet           string `json:"max_net_namespaces,omitempty"`
	UnprivilegedOK   string `json:"unprivileged_userns_clone,omitempty"` // Debian's and Ubuntu's sysctl: "0" forbids them
	AppArmorRestrict string `json:"apparmor_restrict_unprivileged_userns,omitempty"`
	Supported        bool   `json:"supported"`         // CONFIG_USER_NS
	Seccomp          bool   `json:"seccomp_filter"`    // this process has a filter
	NoNewPrivs       bool   `json:"no_new_privileges"` // setuid programs such as newuidmap have no effect
	// Refused is the kernel's error when we tried. It is empty if that succeeded, or if we are root,
	// for whom a trial would prove nothing.
	Refused string `json:"refused,omitempty"`
}

func userNamespaces(f *files) UserNamespaces {
	status := f.read("proc/self/status")
	return UserNamespaces{
		Max:              f.read("proc/sys/user/max_user_namespaces"),
		MaxNet:           f.read("proc/sys/user/max_net_namespaces"),
		UnprivilegedOK:   f.read("proc/sys/kernel/unprivileged_userns_clone"),
		AppArmorRestrict: f.read("proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
		Supported:        f.exists("proc/self/ns/user"),
		Seccomp:          field(status, "Seccomp") == "2",
		NoNewPrivs:       field(status, "NoNewPrivs") == "1",
	}
}

// tryUserNamespace starts a program that does not exist in a user and a network namespace of its
// own, and returns the error. ENOENT means success: only the program was missing. The child has
// ended when it returns. Package lab needs more and tries more.
func tryUserNamespace() string {
	if os.Geteuid() == 0 {
		return ""
	}
	_, err := syscall.ForkExec("/proc/self/no-such-program", []string{"probe"}, &syscall.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		},
	})
	if err == nil || errors.Is(err, unix.ENOENT) { // never nil: there is no such program
		return ""
	}
	return err.Error()
}
