package host

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

// TestFromFiles reads files as on a laptop with two cores and four threads.
func TestFromFiles(t *testing.T) {
	h := fromFiles(newFiles(os.DirFS("testdata/laptop")))
	want := CPU{
		Model: "Example CPU 9000", Online: 4, Sockets: 1, Cores: 2, SMT: true,
		Siblings: [][]int{{0, 2}, {1, 3}}, SharedL2: [][]int{{0, 2}, {1, 3}}, SharedL3: [][]int{{0, 1, 2, 3}},
		Nodes: [][]int{{0, 1, 2, 3}}, Governors: []string{"powersave"}, Driver: "intel_pstate",
		Preferences: []string{"balance_performance"}, MaxKHz: 4800000, MHz: "1800.000", Boost: "on", IdleDriver: "intel_idle",
		Microcode: "0x42", Quota: 1.5,
	}
	if diff := cmp.Diff(want, h.CPU); diff != "" {
		t.Errorf("cpu:\n%s", diff)
	}
	if h.Distribution != "Debian GNU/Linux 12 (bookworm)" {
		t.Errorf("distribution %q", h.Distribution)
	}
	if h.Kernel.Preempt != "dynamic (voluntary)" || h.Kernel.Accounting != AccountTick {
		t.Errorf("preempt %q, accounting %q", h.Kernel.Preempt, h.Kernel.Accounting)
	}
	if got := strings.Join(h.Kernel.Parameters, " "); got != "mitigations=off" {
		t.Errorf("parameters %q, want only those that matter", got)
	}
	if got := h.Sysctls["net.ipv4.tcp_rmem"]; got != "4096 131072 6291456" {
		t.Errorf("tcp_rmem %q", got)
	}
	if h.Memory != (Memory{Total: 16 << 30, Available: 8 << 30, HugePages: "madvise"}) {
		t.Errorf("memory %+v", h.Memory)
	}
	if h.Virtualization != (Virtualization{Vendor: "Example", Product: "Laptop"}) {
		t.Errorf("virtualization %+v", h.Virtualization)
	}
	if h.UserNamespaces.UnprivilegedOK != "1" || !h.UserNamespaces.Supported || h.UserNamespaces.Seccomp {
		t.Errorf("user namespaces %+v", h.UserNamespaces)
	}
}

// TestFromNothing checks that all facts may be absent.
func TestFromNothing(t *testing.T) {
	f := newFiles(fstest.MapFS{})
	h := fromFiles(f)
	if h.CPU.Online != 0 || len(h.Sysctls) != 0 || len(h.Kernel.Config) != 0 {
		t.Errorf("facts from an empty tree: %+v", h)
	}
	if d := f.unreadable; len(d) != 0 {
		t.Errorf("absent files are not unreadable: %v", d)
	}
	if _, err := json.Marshal(h); err != nil {
		t.Error(err)
	}
}

// deniedFS refuses to open one file, as a kernel does if only root may read it.
type deniedFS struct {
	fs.FS
	name string
}

func (d deniedFS) Open(name string) (fs.File, error) {
	if name == d.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return d.FS.Open(name)
}

func TestUnreadable(t *testing.T) {
	f := newFiles(deniedFS{fstest.MapFS{}, "sys/kernel/debug/sched/preempt"})
	fromFiles(f)
	if got := f.unreadable; len(got) != 1 || !got["/sys/kernel/debug/sched/preempt"] {
		t.Errorf("unreadable %v", got)
	}
}

func TestKernelConfig(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write([]byte("CONFIG_HZ=1000\n# CONFIG_PREEMPT is not set\nCONFIG_SOUND=y\nCONFIG_DEFAULT_TCP_CONG=\"cubic\"\n"))
	w.Close()
	want := map[string]string{"HZ": "1000", "DEFAULT_TCP_CONG": "cubic"}
	for _, tt := range []struct {
		name string
		fsys fstest.MapFS
		want map[string]string
	}{
		{"in /proc", fstest.MapFS{"proc/config.gz": {Data: z.Bytes()}}, want},
		{"in /boot", fstest.MapFS{"proc/sys/kernel/osrelease": file("6.1.0-9\n"), "boot/config-6.1.0-9": file("CONFIG_HZ=1000\nCONFIG_DEFAULT_TCP_CONG=\"cubic\"\n")}, want},
		{"nowhere", fstest.MapFS{}, map[string]string{}},
		{"damaged", fstest.MapFS{"proc/config.gz": file("no gzip")}, map[string]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, kernelConfig(newFiles(tt.fsys))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPreempt(t *testing.T) {
	for _, tt := range []struct {
		name    string
		kernel  Kernel
		running string
		want    string
	}{
		{"real time", Kernel{Version: "#1 SMP PREEMPT_RT Debian"}, "", "rt"},
		{"dynamic, as debugfs says", Kernel{Version: "#1 SMP PREEMPT_DYNAMIC"}, "full", "dynamic (full)"},
		{"dynamic, by command line", Kernel{Version: "#1 SMP PREEMPT_DYNAMIC", Parameters: []string{"preempt=none"}}, "", "dynamic (none)"},
		{"dynamic, by configuration", Kernel{Version: "#1 SMP PREEMPT_DYNAMIC", Config: map[string]string{"PREEMPT_VOLUNTARY": "y"}}, "", "dynamic (voluntary)"},
		{"dynamic, unknown", Kernel{Version: "#1 SMP PREEMPT_DYNAMIC"}, "", "dynamic"},
		{"full", Kernel{Version: "#1 SMP PREEMPT"}, "", "full"},
		{"by configuration", Kernel{Version: "#1 SMP", Config: map[string]string{"PREEMPT_NONE": "y"}}, "", "none"},
		{"unknown", Kernel{Version: "#1 SMP"}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := preempt(tt.kernel, tt.running); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAccounting(t *testing.T) {
	for _, tt := range []struct {
		name     string
		config   map[string]string
		nohzFull string
		want     string
	}{
		{"sampled", map[string]string{"TICK_CPU_ACCOUNTING": "y"}, "", AccountTick},
		{"built for virt_gen, not in use", map[string]string{"VIRT_CPU_ACCOUNTING_GEN": "y"}, "", AccountTick},
		{"the kernel's way to say none", map[string]string{"VIRT_CPU_ACCOUNTING_GEN": "y"}, "(null)", AccountTick},
		{"virt_gen in use", map[string]string{"VIRT_CPU_ACCOUNTING_GEN": "y"}, "2-3", AccountVirtGen},
		{"irq time", map[string]string{"VIRT_CPU_ACCOUNTING_GEN": "y", "IRQ_TIME_ACCOUNTING": "y"}, "", AccountIRQTime},
		{"unknown", nil, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := accounting(tt.config, tt.nohzFull); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseList(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []int
	}{
		{in: "", want: nil},
		{in: "0\n", want: []int{0}},
		{in: "0-2,5,7-8", want: []int{0, 1, 2, 5, 7, 8}},
		{in: "3-1"},
		{in: "0-999999999"},
		{in: "x"},
		{in: "1-x"},
	} {
		if got := parseList(tt.in); !slices.Equal(got, tt.want) {
			t.Errorf("parseList(%q) = %v, want %v", tt.in, got, tt.want)
		}
	}
}

// TestFingerprint reads the machine that the test runs on.
func TestFingerprint(t *testing.T) {
	h := Fingerprint(t.Context())
	if h.Kernel.Release == "" || h.CPU.Online < 1 || h.Versions["go"] == "" || h.Memory.Total == 0 {
		t.Errorf("basic facts are missing: %+v", h)
	}
	if !slices.ContainsFunc(h.Interfaces, func(i Interface) bool { return i.Kind == "loopback" }) {
		t.Errorf("no loopback among %+v", h.Interfaces)
	}
	b, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var back Host
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if name, _ := os.Hostname(); len(name) > 3 && bytes.Contains(b, []byte(`"`+name+`"`)) {
		t.Errorf("the fingerprint names the host %q", name)
	}
}
