package link

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// requirement is what a kind needs from the kernel and the machine.
type requirement struct {
	option   string // kernel configuration option
	module   string // "": part of another module, or built in
	since    string // first kernel version that has it; "": older than any in use
	programs string // Debian package with the programs that it runs
}

// featureRequirements are the requirements of the features that are no kinds.
var featureRequirements = map[string]requirement{
	"tbf":              {option: "CONFIG_NET_SCH_TBF", module: "sch_tbf"},
	"mptcp":            {option: "CONFIG_MPTCP", since: "5.6"},
	"bridge-netfilter": {option: "CONFIG_BRIDGE_NETFILTER", module: "br_netfilter"},
}

// newLack explains why a kind or feature is not available, given the error of an
// attempt to use it.
func newLack(name string, err error) *Lack {
	n, ok := featureRequirements[name]
	if !ok {
		k, _ := findKind(name)
		n = k.requires
	}
	return system{root: os.DirFS("/"), release: kernelRelease()}.lack(name, n, err)
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// system is what a Lack is derived from: the running kernel's release and the
// machine's files.
type system struct {
	root    fs.FS
	release string
}

func (s system) lack(name string, n requirement, err error) *Lack {
	l := &Lack{What: fmt.Sprintf("links of kind %q", name), Reason: err.Error()}
	if _, ok := featureRequirements[name]; ok {
		l.What = name
	}
	var file *fs.PathError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		l.Remedy = "apt install " + n.programs
	case errors.As(err, &file) && strings.HasSuffix(file.Path, tunDevice):
		l.Reason, l.Remedy = s.explainTunDevice(file)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		l.Reason = "creating network namespaces and links needs CAP_SYS_ADMIN and CAP_NET_ADMIN: " + err.Error()
		l.Remedy = "run as root, or inside a user namespace of your own (unshare -Urn)"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, fs.ErrNotExist):
		l.Reason, l.Remedy = s.explainKernel(n)
	}
	return l
}

// ignoredError means that the kernel created the link, but ignored a parameter.
type ignoredError struct{ kind, param string }

func (e *ignoredError) Error() string {
	return fmt.Sprintf("parameter %q of links of kind %q: the kernel ignores it", e.param, e.kind)
}

// lack returns the error as a *Lack. For a bridge-vlan, a kernel that ignores
// vlan_filtering lacks the kind.
func (e *ignoredError) lack() *Lack {
	if e.kind == "bridge-vlan" && e.param == "vlan_filtering" {
		return newLack(e.kind, unix.EOPNOTSUPP)
	}
	return &Lack{
		What:   fmt.Sprintf("parameter %q of links of kind %q", e.param, e.kind),
		Reason: fmt.Sprintf("Linux %s ignores it", kernelRelease()),
		Remedy: "a newer kernel, or leave it out",
	}
}

func (s system) explainTunDevice(err *fs.PathError) (reason, remedy string) {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return err.Path + " is not readable and writable: " + err.Err.Error(), "as root: chmod 0666 " + err.Path
	case errors.Is(err, fs.ErrNotExist):
		return err.Path + " does not exist", "as root: modprobe tun; mkdir -p /dev/net; mknod -m 0666 " + err.Path + " c 10 200"
	}
	return s.explainKernel(requirement{option: "CONFIG_TUN", module: "tun"}) // ENXIO, ENODEV: a node without a driver
}

func (s system) explainKernel(n requirement) (reason, remedy string) {
	if l := s.tooOld("", n.since); l != nil {
		return l.Reason, l.Remedy
	}
	setting, known := s.config(n.option)
	if known && setting == "" {
		return "the kernel was built without " + n.option, "a kernel with " + n.option + ", such as Debian's linux-image-" + runtime.GOARCH
	}
	if n.module == "" {
		return "the kernel does not support it", "a kernel with " + n.option
	}
	switch installed := s.moduleInstalled(n.module); {
	case setting == "y":
		return "the kernel refuses it although it is built in (" + n.option + "=y)", ""
	case installed:
		return "the module " + n.module + " is not loaded", "as root: modprobe " + n.module
	case known:
		return fmt.Sprintf("the module %s is not installed for Linux %s", n.module, s.release), "apt install linux-image-" + s.release + ", then as root: modprobe " + n.module
	}
	return "the kernel does not support it", "as root: modprobe " + n.module + "; failing that, a kernel with " + n.option
}

// TooOld returns a *Lack of what needs a version of Linux, such as "5.7", or nil if the running kernel is of
// that version or newer.
func TooOld(what, since string) *Lack { return system{release: kernelRelease()}.tooOld(what, since) }

func (s system) tooOld(what, since string) *Lack {
	if since == "" || !older(s.release, since) {
		return nil
	}
	return &Lack{What: what, Reason: fmt.Sprintf("Linux %s is too old: %s is the first release with it", s.release, since), Remedy: "a kernel of " + since + " or later"}
}

// config returns the kernel's build setting for option: "y", "m" or "" for not
// set. known is false if the configuration can't be read.
func (s system) config(option string) (setting string, known bool) {
	for _, name := range []string{"proc/config.gz", "boot/config-" + s.release, path.Join("lib/modules", s.release, "config")} {
		b, err := s.readConfig(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if value, ok := strings.CutPrefix(line, option+"="); ok {
				return strings.TrimSpace(value), true
			}
		}
		return "", true
	}
	return "", false
}

func (s system) readConfig(name string) ([]byte, error) {
	b, err := fs.ReadFile(s.root, name)
	if err != nil || !strings.HasSuffix(name, ".gz") {
		return b, err
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// moduleInstalled reports whether depmod lists the module for the running kernel.
func (s system) moduleInstalled(module string) bool {
	b, err := fs.ReadFile(s.root, path.Join("lib/modules", s.release, "modules.dep"))
	return err == nil && bytes.Contains(b, []byte("/"+module+".ko"))
}

// older reports whether the first two numbers of a kernel version are lower than
// another's.
func older(release, than string) bool {
	a, b := version(release), version(than)
	return slices.Compare(a[:], b[:]) < 0
}

func version(s string) (numbers [2]int) {
	_, _ = fmt.Sscanf(s, "%d.%d", &numbers[0], &numbers[1]) // a short version counts as 0
	return numbers
}
