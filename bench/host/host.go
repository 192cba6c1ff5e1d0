package host

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Host is everything about a machine that can change a network measurement. It is the value of
// "host" in environment.json. Absent facts are zero, and not written.
type Host struct {
	Taken          time.Time         `json:"taken"`
	Kernel         Kernel            `json:"kernel"`
	Distribution   string            `json:"distribution,omitempty"`
	CPU            CPU               `json:"cpu"`
	Virtualization Virtualization    `json:"virtualization"`
	ClockSource    string            `json:"clock_source,omitempty"`
	ClockSources   []string          `json:"clock_sources,omitempty"`
	Memory         Memory            `json:"memory"`
	Sysctls        map[string]string `json:"sysctls,omitempty"` // by dotted name
	UserNamespaces UserNamespaces    `json:"user_namespaces"`
	TUN            TUN               `json:"tun"`
	Netfilter      Netfilter         `json:"netfilter"`
	Interfaces     []Interface       `json:"interfaces,omitempty"`
	IRQBalance     bool              `json:"irqbalance"` // the daemon is running
	Versions       map[string]string `json:"versions"`   // of programs, as they report them
	Load           Load              `json:"load"`
	UID            int               `json:"uid"`
	Unreadable     []string          `json:"unreadable,omitempty"` // facts that exist but may not be read
}

// Memory is the machine's memory, in bytes.
type Memory struct {
	Total     uint64 `json:"total_bytes,omitempty"`
	Available uint64 `json:"available_bytes,omitempty"`
	Swap      uint64 `json:"swap_bytes,omitempty"`
	HugePages string `json:"transparent_hugepages,omitempty"` // "always", "madvise" or "never"
}

// Virtualization describes the hypervisor or container that we run in.
type Virtualization struct {
	Hypervisor bool   `json:"hypervisor"`          // CPUID reports one
	Type       string `json:"type,omitempty"`      // /sys/hypervisor/type
	Vendor     string `json:"vendor,omitempty"`    // DMI sys_vendor
	Product    string `json:"product,omitempty"`   // DMI product_name
	Container  string `json:"container,omitempty"` // "docker" or "podman" if we run in one
}

// TUN is the state of /dev/net/tun, which user-mode networks need.
type TUN struct {
	Present bool   `json:"present"`
	Usable  bool   `json:"usable"` // this process can open it
	Mode    string `json:"mode,omitempty"`
}

// Fingerprint reads the machine. It takes about half a second, mostly to watch the load. If ctx
// ends earlier, some facts are missing. Network facts are those of the calling thread's
// namespace.
func Fingerprint(ctx context.Context) Host {
	f := newFiles(os.DirFS("/"))
	versions := make(chan map[string]string, 1)
	go func() { versions <- programVersions(ctx) }()

	h := fromFiles(f)
	h.Taken = time.Now().UTC()
	h.UID = os.Getuid()
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) == nil {
		h.CPU.Allowed = allowed.Count()
	}
	h.TUN = tunState("/dev/net/tun")
	h.Interfaces = interfaces(f)
	h.Netfilter = netfilter(f)
	h.UserNamespaces.Refused = tryUserNamespace()
	h.Versions = <-versions // before the load is measured, so that the programs are no part of it
	h.Load = measureLoad(ctx, f)
	h.Unreadable = slices.Sorted(maps.Keys(f.unreadable))
	return h
}

// fromFiles reads the part of a Host that is in text files. Tests supply a tree of their own.
func fromFiles(f *files) Host {
	cpuinfo := f.read("proc/cpuinfo")
	meminfo := f.read("proc/meminfo")
	hugePages, _ := between(f.read("sys/kernel/mm/transparent_hugepage/enabled"), "[", "]")
	return Host{
		Kernel:       kernel(f),
		Distribution: osRelease(f.read("etc/os-release")),
		CPU:          cpu(f, cpuinfo),
		Virtualization: Virtualization{
			Hypervisor: slices.Contains(strings.Fields(field(cpuinfo, "flags")), "hypervisor"),
			Type:       f.read("sys/hypervisor/type"),
			Vendor:     f.read("sys/class/dmi/id/sys_vendor"),
			Product:    f.read("sys/class/dmi/id/product_name"),
			Container:  container(f),
		},
		ClockSource:  f.read(clockDir + "current_clocksource"),
		ClockSources: strings.Fields(f.read(clockDir + "available_clocksource")),
		Memory: Memory{
			Total:     kibibytes(meminfo, "MemTotal"),
			Available: kibibytes(meminfo, "MemAvailable"),
			Swap:      kibibytes(meminfo, "SwapTotal"),
			HugePages: hugePages,
		},
		Sysctls:        sysctls(f),
		UserNamespaces: userNamespaces(f),
		IRQBalance:     f.exists("run/irqbalance") || f.exists("run/irqbalance.pid"),
	}
}

const clockDir = "sys/devices/system/clocksource/clocksource0/"

// osRelease returns the name of the distribution (os-release(5)).
func osRelease(text string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return ""
}

// container reports which engine runs us, by the files that Docker and Podman create.
func container(f *files) string {
	switch {
	case f.exists("run/.containerenv"):
		return "podman"
	case f.exists(".dockerenv"):
		return "docker"
	}
	return ""
}

// tunState tries to open the device. That alone creates no interface.
func tunState(path string) TUN {
	st, err := os.Stat(path)
	if err != nil {
		return TUN{}
	}
	t := TUN{Present: true, Mode: st.Mode().Perm().String()}
	if d, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
		d.Close()
		t.Usable = true
	}
	return t
}
