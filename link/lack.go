package link

import (
	"bufio"
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
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// need is what a kernel must have for a kind.
type requirement struct {
	option   string // kernel configuration
	module   string // "": part of another
	since    string // first kernel version, where some in use are older
	programs string // Debian package with the programs it runs
}

// Features that are no kinds.
var featureRequirements = map[string]requirement{
	"tbf":              {option: "CONFIG_NET_SCH_TBF", module: "sch_tbf"},
	"mptcp":            {option: "CONFIG_MPTCP", since: "5.6"},
	"bridge-netfilter": {option: "CONFIG_BRIDGE_NETFILTER", module: "br_netfilter"},
}

// lackOf explains why a kind can't be made here, given how the attempt ended.
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

// host is where a lack is looked into: the running kernel's release and the
// machine's files.
type system struct {
	root    fs.FS
	release string
}

func (h system) lack(name string, n requirement, err error) *Lack {
	l := &Lack{What: fmt.Sprintf("links of kind %q", name), Reason: err.Error()}
	if _, ok := featureRequirements[name]; ok {
		l.What = name
	}
	var file *fs.PathError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		l.Remedy = "apt install " + n.programs
	case errors.As(err, &file) && strings.HasSuffix(file.Path, tunDevice):
		l.Reason, l.Remedy = h.explainTunDevice(file)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		l.Reason = "making network namespaces and links needs CAP_SYS_ADMIN and CAP_NET_ADMIN: " + err.Error()
		l.Remedy = "run as root, or inside a user namespace of your own (unshare -Urn)"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, fs.ErrNotExist):
		l.Reason, l.Remedy = h.explainKernel(n)
	}
	return l
}

// ignoredError says that the kernel made the link, but without a parameter that
// was asked for, as if it had not heard of it.
type ignoredError struct{ kind, param string }

func (e *ignoredError) Error() string {
	return fmt.Sprintf("parameter %q of links of kind %q: the kernel ignores it", e.param, e.kind)
}

// lack explains it. The parameter that makes a bridge-vlan is that kind's.
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

// device explains why the TUN device file can't be opened.
func (h system) explainTunDevice(err *fs.PathError) (reason, remedy string) {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return err.Path + " is not readable and writable: " + err.Err.Error(), "as root: chmod 0666 " + err.Path
	case errors.Is(err, fs.ErrNotExist):
		return "there is no " + err.Path, "as root: modprobe tun; mkdir -p /dev/net; mknod -m 0666 " + err.Path + " c 10 200"
	}
	return h.explainKernel(requirement{option: "CONFIG_TUN", module: "tun"}) // ENXIO, ENODEV: a node without a driver
}

// kernel explains why the kernel does not know a kind.
func (h system) explainKernel(n requirement) (reason, remedy string) {
	if n.since != "" && older(h.release, n.since) {
		return fmt.Sprintf("Linux %s is older than %s, which brought it", h.release, n.since), "a kernel of " + n.since + " or later"
	}
	setting, known := h.config(n.option)
	if known && setting == "" {
		return "the kernel was built without " + n.option, "a kernel with " + n.option + ", such as Debian's linux-image-" + runtime.GOARCH
	}
	if n.module == "" {
		return "the kernel does not support it", "a kernel with " + n.option
	}
	switch installed := h.moduleInstalled(n.module); {
	case setting == "y":
		return "the kernel has it built in (" + n.option + "=y) but refuses it", ""
	case installed:
		return "the module " + n.module + " is not loaded", "as root: modprobe " + n.module
	case known:
		return fmt.Sprintf("the module %s is not installed for Linux %s", n.module, h.release), "apt install linux-image-" + h.release + ", then as root: modprobe " + n.module
	}
	return "the kernel does not support it", "as root: modprobe " + n.module + "; failing that, a kernel with " + n.option
}

// config is the kernel's build setting for option: "y", "m" or "" for not set.
// known is false where the configuration can't be read.
func (h system) config(option string) (setting string, known bool) {
	for _, name := range []string{"proc/config.gz", "boot/config-" + h.release, path.Join("lib/modules", h.release, "config")} {
		b, err := h.readConfig(name)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(b))
		for lines.Scan() {
			if value, ok := strings.CutPrefix(lines.Text(), option+"="); ok {
				return value, true
			}
		}
		return "", true
	}
	return "", false
}

func (h system) readConfig(name string) ([]byte, error) {
	b, err := fs.ReadFile(h.root, name)
	if err != nil || !strings.HasSuffix(name, ".gz") {
		return b, err
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// moduleInstalled tells whether depmod knows the module for the running kernel.
func (h system) moduleInstalled(module string) bool {
	b, err := fs.ReadFile(h.root, path.Join("lib/modules", h.release, "modules.dep"))
	return err == nil && bytes.Contains(b, []byte("/"+module+".ko"))
}

// older compares kernel versions by their first two numbers.
func older(release, than string) bool {
	a1, a2 := version(release)
	b1, b2 := version(than)
	return a1 < b1 || a1 == b1 && a2 < b2
}

func version(s string) (major, minor int) {
	first, rest, _ := strings.Cut(s, ".")
	major, _ = strconv.Atoi(first)
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	minor, _ = strconv.Atoi(rest)
	return major, minor
}
