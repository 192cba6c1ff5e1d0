package host

import (
	"fmt"
	"slices"
	"strings"
)

var cpuChecks = []check{
	{"governor", checkGovernor},
	{"cpus", checkCPUs},
	{"quota", checkQuota},
	{"smt", checkSMT},
	{"load", checkLoad},
	{"steal", checkSteal},
	{"clocksource", checkClock},
	{"accounting", checkAccounting},
	{"irqbalance", checkIRQBalance},
}

func checkGovernor(h Host) []Finding {
	g := h.CPU.Governors
	switch {
	case len(g) == 0: // a virtual machine, mostly
		return nil
	case len(g) == 1 && g[0] == "performance":
		return fine("the frequency governor is performance")
	}
	return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement,
		Title:  "the CPU frequency governor is " + strings.Join(g, " and "),
		Detail: fmt.Sprintf("Short and light loads run at a low clock (driver %s): latency is too high, and CPU per Gbit/s is not comparable.", h.CPU.Driver),
		Fix:    "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"})
}

// Both ends of a measurement and the softirqs between them want a CPU each.
const enoughCPUs = 4

func checkCPUs(h Host) []Finding {
	n := h.CPU.Online
	if h.CPU.Allowed > 0 {
		n = min(n, h.CPU.Allowed)
	}
	switch {
	case n == 0:
		return nil
	case n == 1:
		return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement, Title: "there is one CPU",
			Detail: "Sender, receiver and kernel take turns on it: results are those of placement same-core only, about a third of what two CPUs give."})
	case n < enoughCPUs:
		return one(Finding{Severity: Note, Spoils: SpoilsMeasurement, Title: fmt.Sprintf("there are %d CPUs", n),
			Detail: "Where the scheduler puts the two ends moves one TCP stream up to threefold. Compare cells of one placement only."})
	}
	return fine(fmt.Sprintf("%d CPUs", n))
}

func checkQuota(h Host) []Finding {
	if h.CPU.Quota == 0 || h.CPU.Quota >= float64(h.CPU.Online) {
		return nil
	}
	return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement,
		Title:  fmt.Sprintf("a cgroup limits us to %.2g of %d CPUs", h.CPU.Quota, h.CPU.Online),
		Detail: "Once the quota of a period is used up everything stops until the next: throughput falls and p99 latency is that of the pause, mostly tens of milliseconds.",
		Fix:    "sudo systemd-run --scope --property=CPUQuota= cleat bench quick"})
}

func checkSMT(h Host) []Finding {
	switch {
	case h.CPU.Online == 0:
		return nil
	case !h.CPU.SMT:
		return fine("no two CPUs share a core")
	}
	return one(Finding{Severity: Note, Spoils: SpoilsMeasurement,
		Title:  fmt.Sprintf("%d CPUs share %d cores (SMT)", h.CPU.Online, h.CPU.Cores),
		Detail: "A busy sibling takes a third of a core's speed away, and the kernel still counts both as whole CPUs.",
		Fix:    "echo off | sudo tee /sys/devices/system/cpu/smt/control"})
}

func checkLoad(h Host) []Finding {
	if h.Load.Over == 0 {
		return nil
	}
	share := h.Load.Foreign / float64(max(1, h.CPU.Online))
	f := Finding{Spoils: SpoilsMeasurement,
		Title:  fmt.Sprintf("other processes use %.2f of %d CPUs right now", h.Load.Foreign, h.CPU.Online),
		Detail: "What they take is missing from the results, and it comes and goes. Samples with foreign load are repeated, a limited number of times.",
		Fix:    "top -b -n 1 | head -n 15"}
	switch {
	case share >= 0.25:
		f.Severity = Problem
	case share >= 0.05:
		f.Severity = Warning
	default:
		return fine("other processes are quiet")
	}
	return one(f)
}

func checkSteal(h Host) []Finding {
	switch {
	case h.Load.Over == 0 || !h.Virtualization.Hypervisor && h.Load.Steal == 0:
		return nil
	case h.Load.Steal < 0.02: // one tick in a 400 ms window
		return one(Finding{Severity: Note, Spoils: SpoilsMeasurement, Title: "this is a virtual machine",
			Detail: "No CPU time is stolen at the moment. Its neighbours can still shift results from hour to hour: interleave what you compare."})
	}
	return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement,
		Title:  fmt.Sprintf("the hypervisor takes %.2f CPUs away", h.Load.Steal),
		Detail: "Results depend on the neighbours. Only a machine of one's own, or pinned virtual CPUs, helps; meanwhile take more blocks.",
		Fix:    "cleat bench quick --repeat 20"})
}

func checkClock(h Host) []Finding {
	switch c := h.ClockSource; {
	case c == "":
		return nil
	case slices.Contains([]string{"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}, c):
		f := Finding{Severity: Warning, Spoils: SpoilsMeasurement, Title: "the clock source is " + c,
			Detail: "Each look at the clock is a system call and a slow device read of about a microsecond: request/response latency includes several."}
		if slices.Contains(h.ClockSources, "tsc") {
			f.Fix = "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource"
		}
		return one(f)
	case h.Virtualization.Hypervisor && c != "tsc" && c != "arch_sys_counter":
		return one(Finding{Severity: Note, Spoils: SpoilsMeasurement, Title: "the clock source is the hypervisor's " + c,
			Detail: "It may jump when the machine is migrated."})
	default:
		return fine("the clock source is " + c)
	}
}

func checkAccounting(h Host) []Finding {
	if h.Kernel.Accounting != AccountTick {
		return nil
	}
	return one(Finding{Severity: Note, Spoils: SpoilsMeasurement,
		Title:  "the kernel samples CPU time at each tick",
		Detail: "The split into user, system and softirq is an estimate; of runs under half a second it is a rough one. Sums over all blocks are shown."})
}

func checkIRQBalance(h Host) []Finding {
	if !h.IRQBalance {
		return nil
	}
	return one(Finding{Severity: Note, Spoils: SpoilsMeasurement, Title: "irqbalance runs",
		Detail: "It moves interrupts between CPUs every ten seconds, also during a run over a NIC.",
		Fix:    "sudo systemctl stop irqbalance"})
}
