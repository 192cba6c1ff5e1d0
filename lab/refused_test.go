package lab

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReasonFor(t *testing.T) {
	for _, tt := range []struct {
		name   string
		files  map[string]string
		err    error
		reason string // part of it
		fix    string // part of the remedy
	}{
		{"Ubuntu's AppArmor", map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, unix.EACCES,
			"AppArmor", "kernel.apparmor_restrict_unprivileged_userns=0"},
		{"Debian's old sysctl", map[string]string{"proc/sys/kernel/unprivileged_userns_clone": "0\n"}, unix.EPERM,
			"unprivileged_userns_clone is 0", "kernel.unprivileged_userns_clone=1"},
		{"no namespaces allowed", map[string]string{"proc/sys/user/max_user_namespaces": "0\n"}, unix.ENOSPC,
			"max_user_namespaces is 0", "user.max_user_namespaces=10000"},
		{"the limit is reached", map[string]string{"proc/sys/user/max_user_namespaces": "5\n", "proc/self/ns/user": ""}, unix.ENOSPC,
			"limit", "user.max_user_namespaces"},
		{"a container's seccomp filter", map[string]string{"proc/self/ns/user": "", "proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, unix.EPERM,
			"seccomp", "seccomp=unconfined"},
		{"a kernel without them", nil, unix.EINVAL, "CONFIG_USER_NS", "sudo"},
		{"a sysctl that permits", map[string]string{"proc/sys/kernel/unprivileged_userns_clone": "1\n", "proc/self/ns/user": ""}, unix.EPERM,
			"the kernel refused", "sudo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir() + "/"
			for name, text := range tt.files {
				if err := os.MkdirAll(filepath.Dir(root+name), 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(root+name, []byte(text), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			reason, fix := reasonFor(root, tt.err)
			if !strings.Contains(reason, tt.reason) || !strings.Contains(fix, tt.fix) {
				t.Errorf("reason %q, remedy %q; want them to contain %q and %q", reason, fix, tt.reason, tt.fix)
			}
		})
	}
}

func TestRootLabNeedsRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		if f, err := chooseFlavour(Root); err != nil || f != Root {
			t.Errorf("chooseFlavour(Root) as root: %q, %v", f, err)
		}
		return
	}
	var refused *Refused
	if _, err := chooseFlavour(Root); !errors.As(err, &refused) || refused.Hint() == "" {
		t.Errorf("chooseFlavour(Root) as another user: %v; want a *Refused with a hint", err)
	}
}
