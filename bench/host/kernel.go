package host

import (
	"compress/gzip"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Kernel describes the running kernel.
type Kernel struct {
	Release    string            `json:"release"`
	Version    string            `json:"version,omitempty"`
	Arch       string            `json:"arch,omitempty"`
	Preempt    string            `json:"preempt,omitempty"`    // "rt", "full", "lazy", "voluntary", "none", or "dynamic (full)" and so on
	Accounting string            `json:"accounting,omitempty"` // how CPU time is split: see AccountTick
	Config     map[string]string `json:"config,omitempty"`     // the options that matter, without CONFIG_
	Parameters []string          `json:"parameters,omitempty"` // those of the command line that matter
	// Vulnerabilities are the CPU's, with the kernel's mitigations. Some mitigations cost a quarter
	// of a system call's speed.
	Vulnerabilities map[string]string `json:"vulnerabilities,omitempty"`
	BridgeNetfilter bool              `json:"bridge_netfilter"` // br_netfilter is loaded or built in
}

// Ways in which the kernel accounts processor time (kernel/sched/cputime.c).
const (
	// AccountTick samples: whatever runs when the timer ticks is charged the whole tick. Short
	// interrupts are missed or overcharged.
	AccountTick = "tick"
	// AccountVirtGen measures each transition between user and kernel, on CPUs in nohz_full only.
	AccountVirtGen = "virt_gen"
	// AccountIRQTime measures the time of interrupts and softirqs, and subtracts it from that of
	// the interrupted process. The rest is sampled.
	AccountIRQTime = "irq_time"
)

// configOptions are the kernel options that Host keeps.
var configOptions = []string{
	"HZ", "NO_HZ_FULL", "PREEMPT", "PREEMPT_NONE", "PREEMPT_VOLUNTARY", "PREEMPT_LAZY", "PREEMPT_RT", "PREEMPT_DYNAMIC",
	"TICK_CPU_ACCOUNTING", "VIRT_CPU_ACCOUNTING_GEN", "VIRT_CPU_ACCOUNTING_NATIVE", "IRQ_TIME_ACCOUNTING",
	"MODULES", "USER_NS", "NET_NS", "BPF_JIT", "BRIDGE_NETFILTER", "NETFILTER_FAMILY_BRIDGE", "NF_TABLES", "IP_NF_IPTABLES", "IP_NF_IPTABLES_LEGACY",
	"VETH", "BRIDGE", "BRIDGE_VLAN_FILTERING", "VLAN_8021Q", "MACVLAN", "IPVLAN", "VXLAN", "GENEVE", "OPENVSWITCH", "NETKIT",
	"WIREGUARD", "NET_IPIP", "NET_IPGRE", "TUN", "MPTCP", "NET_SCH_TBF", "NET_SCH_FQ", "NET_SCH_FQ_CODEL", "NET_SCH_NETEM",
	"RPS", "XPS", "TCP_CONG_CUBIC", "TCP_CONG_BBR", "DEFAULT_TCP_CONG",
}

// parameters are the names of kernel parameters that Host keeps. The whole command line may hold
// private data.
var parameters = []string{
	"mitigations", "preempt", "nohz", "nohz_full", "isolcpus", "rcu_nocbs", "irqaffinity", "threadirqs", "nosmt",
	"idle", "intel_idle.max_cstate", "processor.max_cstate", "intel_pstate", "amd_pstate", "cpufreq.default_governor",
	"cpuidle_haltpoll.force", "haltpoll.guest_halt_poll_ns", "clocksource", "tsc", "iommu", "intel_iommu", "amd_iommu", "swiotlb",
	"transparent_hugepage", "numa_balancing", "nomodule", "spectre_v2", "retbleed", "l1tf", "mds", "nopti", "pti",
	"apparmor", "selinux", "audit", "init_on_alloc", "init_on_free", "slub_debug",
}

func kernel(f *files) Kernel {
	k := Kernel{
		Release:         f.read("proc/sys/kernel/osrelease"),
		Version:         f.read("proc/sys/kernel/version"),
		Arch:            f.read("proc/sys/kernel/arch"),
		Config:          kernelConfig(f),
		Parameters:      kernelParameters(f.read("proc/cmdline")),
		BridgeNetfilter: f.exists("proc/sys/net/bridge/bridge-nf-call-iptables"),
		Vulnerabilities: map[string]string{},
	}
	running, _ := between(f.read("sys/kernel/debug/sched/preempt"), "(", ")") // "none voluntary (full)"
	k.Preempt = preempt(k, running)
	k.Accounting = accounting(k.Config, f.read("sys/devices/system/cpu/nohz_full"))
	for _, name := range f.list("sys/devices/system/cpu/vulnerabilities") {
		if v := f.read("sys/devices/system/cpu/vulnerabilities/" + name); v != "" && v != "Not affected" {
			k.Vulnerabilities[name] = v
		}
	}
	return k
}

// kernelConfig reads the kernel's configuration from where distributions put it: /proc/config.gz,
// /boot, or beside the modules.
func kernelConfig(f *files) map[string]string {
	text := ""
	if file, err := f.fsys.Open("proc/config.gz"); err == nil {
		text = gunzip(file)
		file.Close()
	}
	release := f.read("proc/sys/kernel/osrelease")
	for _, name := range []string{"boot/config-" + release, "lib/modules/" + release + "/config", "usr/lib/modules/" + release + "/config"} {
		if text == "" && release != "" {
			text = f.read(name)
		}
	}
	return parseConfig(text)
}

func gunzip(r fs.File) string {
	z, err := gzip.NewReader(r)
	if err != nil {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(z, maxConfigBytes))
	if err != nil {
		return ""
	}
	return string(b)
}

// maxConfigBytes bounds a kernel configuration. Debian's has 270 kB.
const maxConfigBytes = 8 << 20

func parseConfig(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "CONFIG_"), "=")
		if ok && slices.Contains(configOptions, k) {
			out[k] = strings.Trim(v, `"`)
		}
	}
	return out
}

func kernelParameters(cmdline string) []string {
	var out []string
	for _, word := range strings.Fields(cmdline) {
		if word == "--" { // the rest is for init
			break
		}
		name, _, _ := strings.Cut(word, "=")
		if slices.Contains(parameters, name) {
			out = append(out, word)
		}
	}
	return out
}

// preempt names the preemption model. In a PREEMPT_DYNAMIC kernel it can change at run time:
// running is the current one from debugfs, which only root can read. Without it the command line
// counts, and then the configuration.
func preempt(k Kernel, running string) string {
	built := ""
	for _, m := range []struct{ option, name string }{
		{"PREEMPT_RT", "rt"}, {"PREEMPT", "full"}, {"PREEMPT_LAZY", "lazy"}, {"PREEMPT_VOLUNTARY", "voluntary"}, {"PREEMPT_NONE", "none"},
	} {
		if k.Config[m.option] == "y" && built == "" {
			built = m.name
		}
	}
	words := strings.Fields(k.Version)
	switch {
	case slices.Contains(words, "PREEMPT_RT"):
		return "rt"
	case slices.Contains(words, "PREEMPT_DYNAMIC"):
		for _, p := range k.Parameters {
			if v, ok := strings.CutPrefix(p, "preempt="); ok {
				built = v
			}
		}
		if running != "" {
			built = running
		}
		if built == "" {
			return "dynamic"
		}
		return "dynamic (" + built + ")"
	case slices.Contains(words, "PREEMPT"):
		return "full"
	}
	return built
}

// accounting returns how the kernel splits processor time: AccountTick, AccountVirtGen,
// AccountIRQTime, "native", or "" if the configuration can't be read. nohzFull lists the CPUs on
// which virt_gen is active.
func accounting(config map[string]string, nohzFull string) string {
	switch {
	case len(config) == 0:
		return ""
	case config["VIRT_CPU_ACCOUNTING_NATIVE"] == "y":
		return "native"
	case config["VIRT_CPU_ACCOUNTING_GEN"] == "y" && nohzFull != "" && nohzFull != "(null)":
		return AccountVirtGen
	case config["IRQ_TIME_ACCOUNTING"] == "y":
		return AccountIRQTime
	}
	return AccountTick
}

// sysctlNames are the settings that Host keeps.
var sysctlNames = []string{
	"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables", "net.bridge.bridge-nf-call-arptables",
	"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.ipv6.conf.all.disable_ipv6",
	"net.ipv4.tcp_congestion_control", "net.ipv4.tcp_available_congestion_control", "net.ipv4.tcp_allowed_congestion_control",
	"net.core.rmem_max", "net.core.wmem_max", "net.core.rmem_default", "net.core.wmem_default", "net.core.optmem_max",
	"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.udp_mem", "net.ipv4.tcp_mem",
	"net.ipv4.tcp_mtu_probing", "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_timestamps", "net.ipv4.tcp_sack", "net.ipv4.ip_no_pmtu_disc",
	"net.ipv4.conf.all.rp_filter", "net.ipv4.conf.default.rp_filter", "net.ipv4.ping_group_range", "net.ipv4.ip_local_port_range",
	"net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_count", "net.netfilter.nf_conntrack_buckets",
	"net.core.netdev_max_backlog", "net.core.netdev_budget", "net.core.netdev_budget_usecs", "net.core.default_qdisc", "net.core.busy_poll",
	"net.core.rps_sock_flow_entries", "net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog", "net.core.bpf_jit_enable",
	"net.mptcp.enabled", "kernel.sched_autogroup_enabled", "kernel.numa_balancing", "kernel.pid_max",
}

func sysctls(f *files) map[string]string {
	out := map[string]string{}
	for _, name := range sysctlNames {
		if v := f.read("proc/sys/" + strings.ReplaceAll(name, ".", "/")); v != "" {
			out[name] = strings.Join(strings.Fields(v), " ")
		}
	}
	return out
}
