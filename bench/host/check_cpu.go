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
	case len(g) == 0: // most virtual machines
		return nil
	case len(g) == 1 && g[0] == "performance":
		return fine("the frequency governor is performance")
	}
	return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement,
		Title:  "the CPU frequency governor is " + strings.Join(g, " and "),
		Detail: fmt.Sprintf("Short and light loads run at a low clock (driver %s): latency is too high, and CPU per Gbit/s is not comparable.", h.CPU.Driver),
		Fix:    "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"})
}

// enoughCPUs is one for each end of a measurement, and some for the softirqs between them.
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
		return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement, Title: "only one CPU is available",
			Detail: "Sender, receiver and kernel share it: results are those of placement same-core, about a third of what two CPUs give."})
	case n < enoughCPUs:
		return one(Finding{Severity: Note, Spoils: SpoilsMeasurement, Title: fmt.Sprintf("only %d CPUs are available", n),
			Detail: "The throughput of one TCP stream varies up to threefold with the CPUs that the scheduler chooses for its ends. Compare only results with the same placement."})
	}
	return fine(fmt.Sprintf("%d CPUs", n))
}

func checkQuota(h Host) []Finding {
	if h.CPU.Quota == 0 || h.CPU.Quota >= float64(h.CPU.Online) {
		return nil
	}
	return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement,
		Title:  fmt.Sprintf("a cgroup limits this process to %.2g of %d CPUs", h.CPU.Quota, h.CPU.Online),
		Detail: "When the quota of a period is used up, everything pauses until the next period: throughput falls, and p99 latency is the length of the pause, mostly tens of milliseconds.",
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
		Detail: "A busy sibling slows a CPU down by a third, but the kernel counts both as whole CPUs.",
		Fix:    "echo off | sudo tee /sys/devices/system/cpu/smt/control"})
}

func checkLoad(h Host) []Finding {
	if h.Load.Over == 0 {
		return nil
	}
	share := h.Load.Foreign / float64(max(1, h.CPU.Online))
	f := Finding{Spoils: SpoilsMeasurement,
		Title:  fmt.Sprintf("other processes use %.2f of %d CPUs right now", h.Load.Foreign, h.CPU.Online),
		Detail: "Their CPU time is missing from the results, and it varies. Samples with foreign load are repeated a limited number of times.",
		Fix:    "top -b -n 1 | head -n 15"}
	switch {
	case share >= 0.25:
		f.Severity = Problem
	case share >= 0.05:
		f.Severity = Warning
	default:
		return fine("other processes use little CPU time")
	}
	return one(f)
}

func checkSteal(h Host) []Finding {
	switch {
	case h.Load.Over == 0 || !h.Virtualization.Hypervisor && h.Load.Steal == 0:
		return nil
	case h.Load.Steal < 0.02: // one tick in a 400 ms window
		return one(Finding{Severity: Note, Spoils: SpoilsMeasurement, Title: "this is a virtual machine",
			Detail: "No CPU time is stolen at the moment, but other guests can shift results from hour to hour: interleave the variants that you compare."})
	}
	return one(Finding{Severity: Warning, Spoils: SpoilsMeasurement,
		Title:  fmt.Sprintf("the hypervisor steals %.2f CPUs", h.Load.Steal),
		Detail: "Results depend on other guests. Only a dedicated machine or pinned virtual CPUs help; until then, measure more blocks.",
		Fix:    "cleat bench quick --repeat 20"})
}

func checkClock(h Host) []Finding {
	switch c := h.ClockSource; {
	case c == "":
		return nil
	case slices.Contains([]string{"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}, c):
		f := Finding{Severity: Warning, Spoils: SpoilsMeasurement, Title: "the clock source is " + c,
			Detail: "Each reading of the clock is a system call and a slow device read of about a microsecond: request/response latency includes several."}
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
		Detail: "The split into user, system and softirq time is an estimate, and a rough one for runs under half a second. Reports show sums over all blocks."})
}

func checkIRQBalance(h Host) []Finding {
	if !h.IRQBalance {
		return nil
	}
	return one(Finding{Severity: Note, Spoils: SpoilsMeasurement, Title: "irqbalance is running",
		Detail: "It moves interrupts between CPUs every ten seconds, even during a measurement over a NIC.",
		Fix:    "sudo systemctl stop irqbalance"})
}
